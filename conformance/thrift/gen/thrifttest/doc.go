// SPDX-License-Identifier: Apache-2.0

// Package thrifttest is what Apache's compiler generates from thrifttest.thrift.
package thrifttest
