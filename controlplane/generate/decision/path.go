// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// parametersSince is the first Envoy 1.x that resolves dot segments with parameters.
const parametersSince = 39

// normalized returns the path of a request, with its query, as the filters see it. It returns an
// error if Envoy refuses the path.
func normalized(hcm *hcmv3.HttpConnectionManager, target string, minor int) (string, error) {
	if strings.Contains(target, "#") {
		return "", errors.New("a path must not contain a fragment")
	}
	if !strings.HasPrefix(target, "/") {
		return "", errors.New("a path must begin with a slash")
	}
	path, query, hasQuery := strings.Cut(target, "?")
	switch action := hcm.GetPathWithEscapedSlashesAction(); action {
	case hcmv3.HttpConnectionManager_IMPLEMENTATION_SPECIFIC_DEFAULT, hcmv3.HttpConnectionManager_KEEP_UNCHANGED:
	case hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD:
		path = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`).Replace(path)
	default:
		return "", fmt.Errorf("the action %s for encoded slashes is not known", action)
	}
	if hcm.GetNormalizePath().GetValue() {
		if minor >= parametersSince {
			path = withoutParameters(path)
		}
		var ok bool
		if path, ok = canonical(path); !ok {
			return "", errors.New("a path must not contain %00 or a control character")
		}
	}
	for hcm.GetMergeSlashes() && strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if hasQuery {
		path += "?" + query
	}
	return path, nil
}

// withoutParameters removes the parameters of dot segments.
func withoutParameters(path string) string {
	var out strings.Builder
	for len(path) > 0 {
		end := 1 + strings.IndexAny(path[1:], `/\`)
		if end == 0 {
			end = len(path)
		}
		segment, _, _ := strings.Cut(path[1:end], ";")
		switch strings.ReplaceAll(strings.ToLower(segment), "%2e", ".") {
		case ".", "..":
			out.WriteString(path[:1] + segment)
		default:
			out.WriteString(path[:end])
		}
		path = path[end:]
	}
	return out.String()
}

// canonical resolves dot segments, decodes characters that need no encoding, encodes those that do,
// and replaces backslashes. It returns false for a path that no URL can have.
func canonical(path string) (string, bool) {
	var out []byte
	for i := 0; i < len(path); {
		c := path[i]
		dot := dotAt(path, i)
		switch {
		case dot > 0 && len(out) > 0 && out[len(out)-1] == '/':
			up, length := segmentAt(path, i+dot)
			if length < 0 { // no dot segment
				out, i = append(out, '.'), i+dot
				break
			}
			if up {
				out = parent(out)
			}
			i += dot + length
		case dot > 0:
			out, i = append(out, '.'), i+dot
		case c == '\\':
			out, i = append(out, '/'), i+1
		case c == '%':
			value, ok := hexAt(path, i)
			switch {
			case !ok:
				out, i = append(out, '%'), i+1
			case value == 0:
				return "", false
			case unreserved(value):
				out, i = append(out, value), i+3
			default:
				out, i = append(out, path[i:i+3]...), i+3
			}
		case c == 0:
			return "", false
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(path[i:])
			for _, b := range []byte(string(r)) {
				out = fmt.Appendf(out, "%%%02X", b)
			}
			i += size
		case c <= ' ' || c == 0x7f || strings.IndexByte("\"<>^`{|}", c) >= 0:
			out, i = fmt.Appendf(out, "%%%02X", c), i+1
		default:
			out, i = append(out, c), i+1
		}
	}
	return string(out), true
}

// dotAt returns the length of a dot at a position, which may be encoded, or 0.
func dotAt(path string, i int) int {
	if i >= len(path) {
		return 0
	}
	if path[i] == '.' {
		return 1
	}
	if len(path) >= i+3 && strings.EqualFold(path[i:i+3], "%2e") {
		return 3
	}
	return 0
}

// segmentAt reports what follows the first dot of a segment: whether the segment is "..", and the
// length of its rest with a slash. The length is negative if it is not a dot segment.
func segmentAt(path string, i int) (up bool, length int) {
	ends := func(i int) int {
		switch {
		case i == len(path):
			return 0
		case path[i] == '/' || path[i] == '\\':
			return 1
		}
		return -1
	}
	if n := ends(i); n >= 0 {
		return false, n
	}
	if dot := dotAt(path, i); dot > 0 {
		if n := ends(i + dot); n >= 0 {
			return true, dot + n
		}
	}
	return false, -1
}

// parent removes the last segment of a path that ends with a slash.
func parent(path []byte) []byte {
	i := len(path) - 1
	for i > 0 && path[i-1] != '/' {
		i--
	}
	return path[:max(i, 1)]
}

// hexAt decodes a character that is encoded at a position.
func hexAt(path string, i int) (byte, bool) {
	if len(path) < i+3 {
		return 0, false
	}
	var value byte
	for _, c := range []byte(path[i+1 : i+3]) {
		switch {
		case '0' <= c && c <= '9':
			value = value<<4 + c - '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			value = value<<4 + (c | 0x20) - 'a' + 10
		default:
			return 0, false
		}
	}
	return value, true
}

// unreserved reports whether a character never has to be encoded.
func unreserved(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte("-_~", c) >= 0
}
