// SPDX-License-Identifier: Apache-2.0

// Package plain has the small messages as plain structs, for codecs that work by reflection; the
// large one is peer.PlainMessage.
package plain

// Args is what is multiplied.
type Args struct{ A, B int }

// Reply is the product.
type Reply struct{ C int }
