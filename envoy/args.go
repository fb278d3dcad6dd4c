// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Log formats that the log collectors of a mesh can already parse.
const (
	textLogFormat = "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"
	jsonLogFormat = `{"level":"%l","time":"%Y-%m-%dT%T.%fZ","scope":"envoy %n","msg":"%j","caller":"%g:%#","thread":%t}`
)

// ArgsInput is the input of Args.
type ArgsInput struct {
	// ConfigFile is the path of the bootstrap.
	ConfigFile string
	// DrainDuration is the time over which Envoy closes connections gracefully. It is rounded down
	// to whole seconds.
	DrainDuration time.Duration
	// IPv6Only is true when every address of the workload is IPv6.
	IPv6Only bool
	// LogLevel is a list in the format of --proxyLogLevel, such as "warning,misc:error". If empty,
	// Envoy uses its default.
	LogLevel string
	// ComponentLogLevel applies if LogLevel names no component. Example:
	// "misc:error,upstream:debug".
	ComponentLogLevel string
	// JSONLog selects JSON log lines instead of text.
	JSONLog bool
	// OverrideYAML is configuration that Envoy merges over the bootstrap. Empty means none.
	OverrideYAML string
	// Concurrency is the number of worker threads. 0 means Envoy's default of one per CPU.
	Concurrency int
	// SkipDeprecatedLogs omits Envoy's warnings of deprecated fields in its configuration.
	SkipDeprecatedLogs bool
	// HotRestart omits the argument that disables hot restart. Process adds the arguments that hot
	// restart needs; see [HotRestart].
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
		// The time over which Envoy spreads the closing of connections. The agent's own deadline
		// ends the drain.
		{true, []string{"--drain-time-s", strconv.Itoa(int(in.DrainDuration / time.Second))}},
		// Ask every client to leave as soon as the drain begins. The drain is too short to select
		// clients at random.
		{true, []string{"--drain-strategy", "immediate"}},
		// The address family of "local address" in logs and headers.
		{true, []string{"--local-address-ip-version", family}},
		// Flush access logs within a second.
		{true, []string{"--file-flush-interval-msec", "1000"}},
		// Each agent runs its own Envoy: no shared memory, and no base id that could conflict with
		// another Envoy on the host.
		{!in.HotRestart, []string{"--disable-hot-restart"}},
		// Allow an older Envoy to start with a newer bootstrap.
		{true, []string{"--allow-unknown-static-fields"}},
		{true, []string{"--log-format", format}},
		{in.SkipDeprecatedLogs, []string{"--skip-deprecated-logs"}},
		{level != "", []string{"-l", level}},
		{components != "", []string{"--component-log-level", components}},
		// Placed after -c: Envoy merges it over the file.
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

// LogLevels returns the log levels of Envoy.
func LogLevels() []string {
	return []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}
}

// ParseLogLevel splits a --proxyLogLevel list. An entry without a colon sets the level; the last
// one wins. An entry "component:level" sets the level of a component. It returns malformed entries
// and levels that Envoy would reject as dropped, so that the caller can log a warning.
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
