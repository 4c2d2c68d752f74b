// SPDX-License-Identifier: Apache-2.0

// Package unauthenticated tests what a server does for callers without a token, in every protocol:
// it decompresses and decodes nothing of their requests, and its answer does not tell whether a
// method exists, and what it takes.
package unauthenticated
