// SPDX-License-Identifier: Apache-2.0

// Package overload sends a server ten times as many calls as it can serve, and looks at what
// becomes of them. It has tests only:
//
//	go test -v ./conformance/overload                 # a few seconds each
//	go test -v ./conformance/overload -overload.long  # 30 seconds each
package overload
