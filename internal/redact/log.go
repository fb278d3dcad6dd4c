// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package redact

import (
	"encoding/json"
	"regexp"
	"strings"
)

var (
	// secretHeader is a header whose value is a secret, up to the end of the line or quotation.
	secretHeader = regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(["']?\s*[:=]\s*["']?)[^"'\n]+`)
	// secretPair is a field or parameter with a value, as in a log line, a URL or YAML.
	secretPair = regexp.MustCompile(`(?i)([a-z0-9_.-]*(?:passw(?:or)?d|secret|token|api[_-]?key|private[_-]?key)[a-z0-9_.-]*["']?\s*[:=]\s*)("[^"\n]+"|'[^'\n]+'|[^\s"'&,;]+)`)
)

// Log replaces the secrets in lines of a log or other text: more than in a value of JSON, where the names
// of fields are known. Lines of JSON are treated as JSON.
func Log(text string) string {
	var b strings.Builder
	for line := range strings.Lines(Text(text)) {
		var value map[string]any
		if plain := strings.TrimSpace(line); strings.HasPrefix(plain, "{") && json.Unmarshal([]byte(plain), &value) == nil {
			if out, err := json.Marshal(JSON(value)); err == nil {
				line = string(out) + "\n"
			}
		}
		line = secretHeader.ReplaceAllString(line, "$1$2"+Mark)
		b.WriteString(secretPair.ReplaceAllString(line, "${1}"+Mark))
	}
	return b.String()
}
