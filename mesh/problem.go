// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"path/filepath"
	"strconv"
	"strings"
)

// What the control plane logs about the user's configuration.
const (
	msgProblem  = "a configuration object has a problem"
	msgGone     = "a problem of a configuration object is gone"
	msgNoEffect = "an object does not take full effect"
)

// configProblem returns a line of the control plane about the user's
// configuration the form that the problems of the mesh file have:
// file:line: kind namespace/name: reason. Other lines are not ok.
func (u *Mesh) configProblem(line string) (level, string, bool) {
	attrs := logAttrs(line)
	l, reason := levelWarning, attrs["reason"]
	switch attrs["msg"] {
	case msgProblem, msgNoEffect:
	case msgGone:
		fault, _, _ := strings.Cut(reason, ";") // what follows is the cure
		l, reason = levelInfo, "fixed: "+fault
	default:
		return levelNone, "", false
	}
	place := attrs["source"]
	if rel, err := filepath.Rel(u.cfg.WorkDir, place); err == nil && !strings.HasPrefix(rel, "..") {
		place = rel
	}
	if place != "" {
		place += ": "
	}
	object := ""
	if attrs["name"] != "" {
		object = attrs["kind"] + " " + attrs["namespace"] + "/" + attrs["name"] + ": "
	}
	return l, place + object + reason, true
}

// logAttrs parses a line of slog's text form: key=value, where the value may be
// quoted. It stops at the first text that it cannot parse.
func logAttrs(line string) map[string]string {
	attrs := map[string]string{}
	for {
		key, rest, ok := strings.Cut(strings.TrimLeft(line, " "), "=")
		if !ok {
			return attrs
		}
		value, after, _ := strings.Cut(rest, " ")
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			value, err = strconv.Unquote(quoted)
			if err != nil {
				return attrs
			}
			after = rest[len(quoted):]
		}
		attrs[key], line = value, after
	}
}
