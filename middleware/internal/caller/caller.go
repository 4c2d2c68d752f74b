// SPDX-License-Identifier: Apache-2.0

// Package caller carries the identity of a caller from package auth, which verifies it, to the
// packages that distinguish calls by it.
package caller

import "context"

type key struct{}

type known struct {
	context.Context //nolint:containedctx // it is a context with one value

	user     string
	identity any
}

// Value implements context.Context.
func (k *known) Value(of any) any {
	if _, ok := of.(key); ok {
		return k
	}
	return k.Context.Value(of)
}

// With returns a context that carries an identity. User distinguishes the caller from all others.
func With(ctx context.Context, user string, identity any) context.Context {
	return &known{ctx, user, identity}
}

// From returns what With has stored, or "" and nil.
func From(ctx context.Context) (user string, identity any) {
	k, ok := ctx.Value(key{}).(*known)
	if !ok {
		return "", nil
	}
	return k.user, k.identity
}
