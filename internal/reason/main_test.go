// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }
