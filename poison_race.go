// SPDX-License-Identifier: Apache-2.0

//go:build race

package yodel

// poison makes a Call that is used after its end show: see outgoing.reset.
const poison = true
