// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Log formats that log collectors of a mesh already parse.
const (
	textLogFormat = "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"
	jsonLogFormat = `{"level":"%l","time":"%Y-%m-%dT%T.%fZ","scope":"envoy %n","msg":"%j","caller":"%g:%#","thread":%t}`
)

// ArgsInput is what Envoy's command line depends on.
type ArgsInput struct {
	// ConfigFile is the path of the bootstrap.
	ConfigFile string
	// DrainDuration is how long Envoy closes connections gracefully; whole seconds.
	DrainDuration time.Duration
	// IPv6Only is true when every address of the workload is IPv6.
	IPv6Only bool
	// LogLevel is a list as of --proxyLogLevel: "warning,misc:error". Empty leaves Envoy's default.
	LogLevel string
	// ComponentLogLevel is used when LogLevel names no component: "misc:error,upstream:debug".
	ComponentLogLevel string
	// JSONLog selects JSON log lines instead of text.
	JSONLog bool
	// OverrideYAML is merged by Envoy over the bootstrap. Empty for none.
	OverrideYAML string
	// Concurrency is the number of worker threads. 0 leaves it to Envoy: one for each CPU.
	Concurrency int
	// HotRestart leaves out the argument that rules hot restart out; Process adds
	// those that it needs, see HotRestart.
	HotRestart bool
}

// Args returns Envoy's arguments, without the program's name.
func Args(in ArgsInput) []string {
	level, components, _ := ParseLogLevel(in.LogLevel)
	if components == "" {
		components = in.ComponentLogLevel
	}
	format := textLogFormat
	if in.JSONLog {
		format = jsonLogFormat
	}
	family := "v4"
	if in.IPv6Only {
		family = "v6"
	}
	concurrency := ""
	if in.Concurrency > 0 {
		concurrency = strconv.Itoa(in.Concurrency)
	}

	table := []struct {
		on   bool
		args []string
	}{
		// The bootstrap that the agent wrote.
		{true, []string{"-c", in.ConfigFile}},
		// How long Envoy itself spreads the closing of connections; the agent's own deadline decides when it ends.
		{true, []string{"--drain-time-s", strconv.Itoa(int(in.DrainDuration / time.Second))}},
		// Ask every client to leave as soon as the drain begins: the time is too short to ask at random.
		{true, []string{"--drain-strategy", "immediate"}},
		// The address family of "local address" in logs and headers.
		{true, []string{"--local-address-ip-version", family}},
		// Access logs reach their reader within a second.
		{true, []string{"--file-flush-interval-msec", "1000"}},
		// One Envoy for each agent: no shared memory, no base id that two Envoys of a host could fight for.
		{!in.HotRestart, []string{"--disable-hot-restart"}},
		// An older Envoy starts with a newer bootstrap.
		{true, []string{"--allow-unknown-static-fields"}},
		{true, []string{"--log-format", format}},
		{level != "", []string{"-l", level}},
		{components != "", []string{"--component-log-level", components}},
		// After -c: Envoy merges it over the file.
		{in.OverrideYAML != "", []string{"--config-yaml", in.OverrideYAML}},
		{concurrency != "", []string{"--concurrency", concurrency}},
	}
	var argv []string
	for _, row := range table {
		if row.on {
			argv = append(argv, row.args...)
		}
	}
	return argv
}

// LogLevels are the levels of Envoy's log.
func LogLevels() []string {
	return []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}
}

// ParseLogLevel splits a --proxyLogLevel list: an entry without a colon is the
// level (the last one wins), "component:level" is a component's. Entries of any
// other shape, and levels that Envoy does not have and would end over, are
// returned as dropped, for the caller to warn about.
func ParseLogLevel(list string) (level, components string, dropped []string) {
	var byComponent []string
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		name, of, colon := strings.Cut(entry, ":")
		switch {
		case entry == "":
		case !colon && slices.Contains(LogLevels(), entry):
			level = entry
		case name != "" && colon && slices.Contains(LogLevels(), of):
			byComponent = append(byComponent, entry)
		default:
			dropped = append(dropped, entry)
		}
	}
	return level, strings.Join(byComponent, ","), dropped
}
