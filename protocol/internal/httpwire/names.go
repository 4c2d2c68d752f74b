// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"strings"
)

// codecs are yodel's names of codecs that content types name differently.
var codecs = map[string]string{"": "protobuf", "proto": "protobuf", "x-protobuf": "protobuf", "x-msgpack": "msgpack", "octet-stream": "raw"}

// Codec returns yodel's name for the codec that a content type names, for example "protobuf" for
// "proto".
func Codec(subtype string) string {
	if name, ok := codecs[subtype]; ok {
		return name
	}
	return subtype
}

// Subtype returns the name in content types for a codec of yodel.
func Subtype(codec string) string {
	switch codec {
	case "protobuf":
		return "proto"
	case "raw":
		return "octet-stream"
	}
	return codec
}

// ContentType returns the media type of a header, in lower case and without parameters. A charset
// other than UTF-8 makes the type unknown.
func ContentType(header string) string {
	media, parameters, _ := strings.Cut(header, ";")
	parameters = strings.ToLower(strings.ReplaceAll(parameters, " ", ""))
	if charset, ok := strings.CutPrefix(parameters, "charset="); ok && strings.Trim(charset, `"`) != "utf-8" {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(media))
}

// compressors are yodel's names of compressors that HTTP names differently, because yodel's own
// formats have the usual name.
var compressors = map[string]string{"deflate": "zlib", "snappy": "snappyframe", "s2": "", "flate": ""}

// Compressor returns yodel's name for a compression of HTTP, or "" if the name of HTTP means none.
func Compressor(encoding string) string {
	if name, ok := compressors[encoding]; ok {
		return name
	}
	if encoding == identity {
		return ""
	}
	return encoding
}

// Encoding returns the name of HTTP for a compressor of yodel, or "" if HTTP has none.
func Encoding(compressor string) string {
	for name, ours := range compressors {
		if ours == compressor && ours != "" {
			return name
		}
	}
	if _, taken := compressors[compressor]; taken {
		return ""
	}
	return compressor
}

// identity is the encoding of data that is not compressed.
const identity = "identity"

// Acceptable returns the encodings that a header such as Accept-Encoding lists, without those that
// it excludes with q=0.
func Acceptable(header string) (encodings []string) {
	for part := range strings.SplitSeq(header, ",") {
		name, parameter, _ := strings.Cut(part, ";")
		q := strings.ReplaceAll(parameter, " ", "")
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != identity && q != "q=0" && q != "q=0.0" {
			encodings = append(encodings, name)
		}
	}
	return encodings
}
