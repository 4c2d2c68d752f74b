// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/rolling"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	rolling.Child(map[string]rolling.Serve{"dubbo": serveRolling})
	yodeltest.VerifyNoLeaks(m)
}
