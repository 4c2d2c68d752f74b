// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"bytes"
	"maps"
	"testing"
)

func TestRecordsInAConfiguration(t *testing.T) {
	records := map[string][]byte{
		"object": []byte(`{"a":"<b>"}`), "text": []byte("a text"), "quoted": []byte(`"a text"`), "broken": []byte(`{"a":`), "empty": {}, "null": []byte("null"),
	}
	content, err := contentOf(records)
	if err != nil {
		t.Fatal(err)
	}
	got, err := recordsIn(content)
	if err != nil || !maps.EqualFunc(got, records, bytes.Equal) {
		t.Errorf("got %q, %v of %s", got, err, content)
	}
	if _, err = contentOf(map[string][]byte{"binary": {0xff}}); err == nil {
		t.Error("a record that is no text is stored")
	}
	if got := keptID("rules", "a/b c_d.é"); got != "yodel-rules:a:2Fb:20c_d.:C3:A9" {
		t.Errorf("the configuration is %s", got)
	}
}

// Any program with the permission can write a configuration.
func FuzzRecords(f *testing.F) {
	f.Add("")
	f.Add(`{"canary-7f3a": {"schema": 1}, "text": "a \u003ctext>", "number": 1}`)
	f.Add(`{"a":`)
	f.Fuzz(func(t *testing.T, content string) {
		records, err := recordsIn(content)
		if err != nil {
			return
		}
		again, err := contentOf(records)
		if err != nil {
			return // a record is no text
		}
		if got, err := recordsIn(again); err != nil || !maps.EqualFunc(got, records, bytes.Equal) {
			t.Errorf("%q became %q, %v", records, got, err)
		}
	})
}
