// SPDX-License-Identifier: Apache-2.0

package yodeltest_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

type person struct {
	Name string
	Tags []string
	Ages map[string]int
	Next *person
}

func TestJSONKeepsTheContract(t *testing.T) {
	text, number, list, long := "hello", 42, []float64{1, 2.5, -3}, strings.Repeat("ja ", 500)
	yodeltest.TestCodec(t, yodel.JSON, &yodeltest.CodecOptions{Changes: valuetable.Changes["JSON"]}, &person{Name: "one"},
		&person{Name: long, Tags: []string{"a", long}, Ages: map[string]int{"x": 1, "y": -2}, Next: &person{Name: "two"}}, &text, &number, &list)
}

// The page of values says what the codec does.
func TestValues(t *testing.T) { valuetable.Check(t, yodel.JSON, "JSON", "../docs/values.md") }

// encoding/json reads all values that yodel.JSON carries as it does, and the other way round.
func TestValuesBesideEncodingJSON(t *testing.T) {
	tried := valuetable.Compare(t, yodel.JSON, valuetable.Reference{Encode: json.Marshal, Decode: json.Unmarshal})
	if tried != 161 {
		t.Errorf("%d values were compared", tried)
	}
}

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) { valuetable.Combine(t, yodel.JSON, "JSON") }
