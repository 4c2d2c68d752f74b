// SPDX-License-Identifier: Apache-2.0

package grpcgo_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/servercost"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	servercost.Child(map[string]servercost.Kind{"grpc-go": serveGRPC, "yodel": serveYodel})
	yodeltest.VerifyNoLeaks(m)
}
