// SPDX-License-Identifier: Apache-2.0

// Package refusing has the middleware that the tests of the protocols in this repository pass to
// yodeltest.TestProtocol, which itself knows no middleware.
package refusing

import (
	"context"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// All are middleware that refuse calls.
var All = []yodeltest.ProtocolMiddleware{
	{Name: "rate", Passes: 2, Code: yodel.ResourceExhausted, New: func() yodel.Middleware {
		return rate.With(&rate.Limit{PerSecond: 1e-3, Burst: 2})
	}},
	{Name: "auth", Code: yodel.Unauthenticated, New: func() yodel.Middleware {
		return auth.Check(func(ctx context.Context, _, _ string) (context.Context, error) { return ctx, nil })
	}},
	{Name: "fault", Code: yodel.DataLoss, New: func() yodel.Middleware {
		injector := new(fault.Injector)
		if err := injector.Set(fault.Rule{Name: "all", Code: yodel.DataLoss}); err != nil {
			panic(err) // the rule is a constant
		}
		return injector.Calls
	}},
}
