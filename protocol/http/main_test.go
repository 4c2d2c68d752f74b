// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/servercost"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	servercost.Child(map[string]servercost.Kind{"net/http": serveStandard, "yodel": serveYodel})
	yodeltest.VerifyNoLeaks(m)
}
