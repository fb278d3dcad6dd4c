// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestArgs(t *testing.T) {
	t.Parallel()
	least := []string{
		"-c", "etc/istio/proxy/envoy-rev.json",
		"--drain-time-s", "45",
		"--drain-strategy", "immediate",
		"--local-address-ip-version", "v4",
		"--file-flush-interval-msec", "1000",
		"--disable-hot-restart",
		"--allow-unknown-static-fields",
		"--log-format", "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t",
	}
	with := func(more ...string) []string { return append(append([]string{}, least...), more...) }
	base := ArgsInput{ConfigFile: "etc/istio/proxy/envoy-rev.json", DrainDuration: 45 * time.Second}

	for name, c := range map[string]struct {
		edit func(*ArgsInput)
		want []string
	}{
		"least":           {func(*ArgsInput) {}, least},
		"level":           {func(in *ArgsInput) { in.LogLevel = "warning,misc:error" }, with("-l", "warning", "--component-log-level", "misc:error")},
		"level alone":     {func(in *ArgsInput) { in.LogLevel = "info" }, with("-l", "info")},
		"component alone": {func(in *ArgsInput) { in.LogLevel = "misc:error" }, with("--component-log-level", "misc:error")},
		"old flag": {func(in *ArgsInput) {
			in.LogLevel, in.ComponentLogLevel = "info", "upstream:debug"
		}, with("-l", "info", "--component-log-level", "upstream:debug")},
		"old flag yields": {func(in *ArgsInput) {
			in.LogLevel, in.ComponentLogLevel = "info,misc:error", "upstream:debug"
		}, with("-l", "info", "--component-log-level", "misc:error")},
		"everything": {func(in *ArgsInput) {
			in.LogLevel, in.OverrideYAML, in.Concurrency = "info,misc:error,config:debug", "admin: {}", 2
		}, with("-l", "info", "--component-log-level", "misc:error,config:debug", "--config-yaml", "admin: {}", "--concurrency", "2")},
		"deprecated":           {func(in *ArgsInput) { in.SkipDeprecatedLogs = true }, with("--skip-deprecated-logs")},
		"negative concurrency": {func(in *ArgsInput) { in.Concurrency = -1 }, least},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := base
			c.edit(&in)
			if diff := cmp.Diff(c.want, Args(in)); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

func TestArgsFamilyAndFormat(t *testing.T) {
	t.Parallel()
	got := Args(ArgsInput{ConfigFile: "c", DrainDuration: 1900 * time.Millisecond, IPv6Only: true, JSONLog: true})
	want := []string{
		"-c", "c", "--drain-time-s", "1", "--drain-strategy", "immediate", "--local-address-ip-version", "v6",
		"--file-flush-interval-msec", "1000", "--disable-hot-restart", "--allow-unknown-static-fields", "--log-format",
		`{"level":"%l","time":"%Y-%m-%dT%T.%fZ","scope":"envoy %n","msg":"%j","caller":"%g:%#","thread":%t}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestParseLogLevel(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct {
		level, components string
		dropped           []string
	}{
		"":                    {},
		"warning":             {level: "warning"},
		"warning,info":        {level: "info"},
		" info , misc:error ": {level: "info", components: "misc:error"},
		"a:b:c,:x,y:,ok:off":  {components: "ok:off", dropped: []string{"a:b:c", ":x", "y:"}},
		"loud,error,misc:no":  {level: "error", dropped: []string{"loud", "misc:no"}},
	} {
		level, components, dropped := ParseLogLevel(in)
		if level != want.level || components != want.components || !cmp.Equal(dropped, want.dropped) {
			t.Errorf("ParseLogLevel(%q) = %q, %q, %q, want %q, %q, %q", in, level, components, dropped, want.level, want.components, want.dropped)
		}
	}
}

func FuzzParseLogLevel(f *testing.F) {
	f.Add("warning,misc:error")
	f.Add("a:b:c,,")
	f.Fuzz(func(t *testing.T, list string) {
		level, components, _ := ParseLogLevel(list)
		both := level
		if components != "" {
			both += "," + components
		}
		if l, c, dropped := ParseLogLevel(both); l != level || c != components || dropped != nil {
			t.Errorf("what ParseLogLevel(%q) accepts is read differently again: %q, %q, %q", list, l, c, dropped)
		}
	})
}
