// SPDX-License-Identifier: Apache-2.0

package realserver_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

func TestConsulStarts(t *testing.T) {
	s := realserver.Consul(t)
	s.Kill()
	s.Restart()
	if err := realserver.Get(t.Context(), "http://"+s.Addr+"/v1/agent/self"); err != nil {
		t.Error(err)
	}
}
