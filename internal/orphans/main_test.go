// SPDX-License-Identifier: Apache-2.0

package orphans_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }
