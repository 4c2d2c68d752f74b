// SPDX-License-Identifier: Apache-2.0

//go:build race

package outlier_test

// brief leaves out most of what takes minutes under the race detector.
func brief() bool { return true }
