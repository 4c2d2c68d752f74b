// SPDX-License-Identifier: Apache-2.0

// Package bench is generated from bench.thrift.
package bench

// KitexUnusedProtection is used to prevent 'imported and not used' error.
var KitexUnusedProtection = struct{}{}
