// SPDX-License-Identifier: Apache-2.0

package connect_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	for name, o := range map[string]connect.Options{"HTTP 2": {}, "HTTP 1": {HTTP1: true}} {
		t.Run(name, func(t *testing.T) {
			yodeltest.TestWire(t, yodeltest.Wire{Wire: connect.Wire(&o), Protocol: http.New(nil)})
		})
	}
}
