// SPDX-License-Identifier: Apache-2.0

package realserver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

func TestThriftIsMade(t *testing.T) {
	folder := realserver.Thrift(t)
	for _, name := range []string{"py/ThriftTest/ThriftTest.py", "classes/org/apache/thrift/test/TestClient.class", "keys/server.crt"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Error(err)
		}
	}
}
