// SPDX-License-Identifier: Apache-2.0

// Package torture holds tests that need processes of their own: servers that are killed, and
// memory that is measured from outside.
package torture
