// SPDX-License-Identifier: Apache-2.0

//go:build yodel_h2

package http

const ownHTTP2 = true
