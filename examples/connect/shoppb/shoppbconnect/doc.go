// SPDX-License-Identifier: Apache-2.0

// Package shoppbconnect has the services of shop.proto: package shoppb says how it was generated.
package shoppbconnect
