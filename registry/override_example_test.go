// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
)

func ExampleOverride() {
	ctx, r := context.Background(), memory.New(nil)
	// region override
	// Send no more calls to an instance, whatever it announces.
	err := registry.Override(ctx, r, "Inventory", "10.0.0.7:8972", "inactive", 0)
	if err != nil {
		fmt.Println(err)
	}
	// Let it decide again.
	err = registry.Override(ctx, r, "Inventory", "10.0.0.7:8972", "", 0)
	// endregion override
	fmt.Println(err)
	// Output: <nil>
}
