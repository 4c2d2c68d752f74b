// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"strconv"
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

// maxAcceptable is how many encodings of a header count.
const maxAcceptable = 32

// Acceptable returns the encodings that a header such as Accept-Encoding lists, without those that
// it excludes with the weight 0. Those with a larger weight come first.
func Acceptable(header string) (encodings []string) {
	if header == "" {
		return nil
	}
	var room [8]float64 // for most requests
	weights := room[:0]
	encodings = make([]string, 0, min(strings.Count(header, ",")+1, maxAcceptable))
	for part := range strings.SplitSeq(header, ",") {
		name, parameter, weighted := strings.Cut(part, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		weight := 1.0
		if weighted {
			weight = weightOf(parameter)
		}
		if name == "" || name == identity || weight <= 0 {
			continue
		}
		if len(encodings) == maxAcceptable {
			break
		}
		encodings, weights = append(encodings, name), append(weights, weight)
		for at := len(weights) - 1; at > 0 && weights[at-1] < weights[at]; at-- {
			weights[at-1], weights[at] = weights[at], weights[at-1]
			encodings[at-1], encodings[at] = encodings[at], encodings[at-1]
		}
	}
	return encodings
}

// weightOf returns the weight that a parameter such as "q=0.5" says, or 1.
func weightOf(parameter string) float64 {
	name, value, _ := strings.Cut(parameter, "=")
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 1
	}
	return q
}
