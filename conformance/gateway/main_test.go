// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"io"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) // the gateway writes a line for most requests
	yodeltest.VerifyNoLeaks(m)
}
