// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"path/filepath"
	"strconv"
	"strings"
)

// Log messages of the control plane about the user's configuration.
const (
	msgProblem  = "a configuration object has a problem"
	msgGone     = "a problem with a configuration object is resolved"
	msgNoEffect = "an object does not take full effect"
	replacesIt  = " replaces it" // end of a reason
	msgSetting  = "a field of the mesh config has no effect in this version"
)

// configProblem converts a log line of the control plane about the user's configuration to the
// format of mesh file problems: file:line: kind namespace/name: reason. It returns false for other
// lines.
func (u *Mesh) configProblem(s *state, line string) (level, string, bool) {
	attrs := logAttrs(line)
	l, reason := levelWarning, attrs["reason"]
	switch attrs["msg"] {
	case msgProblem, msgNoEffect:
	case msgSetting:
		reason = "mesh: " + attrs["name"] + " has no effect in this version"
	case msgGone:
		fault, _, _ := strings.Cut(reason, ";") // the cure follows the semicolon
		l, reason = levelInfo, "fixed: "+fault
	default:
		return levelNone, "", false
	}
	u.live.log(attrs, l == levelInfo)
	if attrs["kind"] == "Sidecar" && strings.HasSuffix(reason, replacesIt) {
		reason += "; it needs " + u.mesh.ingressOf(attrs["namespace"], attrs["name"]) + " for the requests to the workload"
	}
	return l, u.about(s, attrs) + reason, true
}

// about returns the beginning of a message about an object: file and line that the user wrote, and the
// name of the object.
func (u *Mesh) about(s *state, attrs map[string]string) string {
	place := u.origin(s, attrs)
	if rel, err := filepath.Rel(u.cfg.WorkDir, place); place != "" && err == nil && !strings.HasPrefix(rel, "..") {
		place = rel
	}
	if place != "" {
		place += ": "
	}
	if attrs["name"] != "" && attrs["kind"] != "" {
		place += attrs["kind"] + " " + attrs["namespace"] + "/" + attrs["name"] + ": "
	}
	return place
}

// origin returns the file and line that the user wrote of what a log line is about. What the control
// plane reads from a generated file comes from the mesh file.
func (u *Mesh) origin(s *state, attrs map[string]string) string {
	source, line := attrs["source"], 0
	switch source[:max(strings.LastIndexByte(source, ':'), 0)] {
	case s.meshConfig():
		line = u.mesh.settingLines[attrs["name"]]
	case s.objects():
		line = u.mesh.objectLine(attrs["kind"], attrs["namespace"], attrs["name"])
	}
	if line == 0 {
		return source
	}
	return u.mesh.file + ":" + strconv.Itoa(line)
}

// logAttrs parses a line in slog's text format: key=value, where the value may be quoted. It stops
// at the first syntax error.
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
