// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// A process follows the rules in a registry with one line.
func ExampleWith() {
	registry := memory.New(nil)
	// region wiring
	r := rules.With(registry, nil)
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
	c := yodel.NewClient(r.Service("Shop"), nil)
	// endregion wiring
	defer c.Close()
	fmt.Println(s != nil, r.Switch("Shop", "newPrices", false))
	// Output: true false
}

// An operator writes rules with a Book.
func ExampleBook_Put() {
	write := func(ctx context.Context) error {
		registry := memory.New(nil)
		// region put
		book, err := rules.Open(registry)
		if err != nil {
			return err
		}
		rule, err := book.Put(ctx, rules.Rule{
			Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10},
			Author: "ann", Reason: "CHG-88: try v2", Expires: time.Now().Add(2 * time.Hour),
			Rollback: &rules.Rollback{Below: 99, For: rules.Duration(30 * time.Second)},
		})
		// endregion put
		if err != nil {
			return err
		}
		fmt.Println(rule.Revision, rule.Kind())
		return nil
	}
	if err := write(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: 1 canary
}
