// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/registry/memory"
)

func TestRegistriesKeepRules(t *testing.T) {
	t.Run("memory", func(t *testing.T) { governed.Book(t, memory.New(nil)) })
	t.Run("file", func(t *testing.T) { governed.Book(t, file.New(t.TempDir(), nil)) })
}
