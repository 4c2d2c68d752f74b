// SPDX-License-Identifier: Apache-2.0

package grpcgo

import (
	"encoding/base64"
	"strings"
)

func encodeBinary(value string) string { return base64.RawStdEncoding.EncodeToString([]byte(value)) }

// decodeBinary decodes base64 with padding or without it.
func decodeBinary(value string) ([]byte, error) {
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(value), "="))
}
