// SPDX-License-Identifier: Apache-2.0

package async_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }
