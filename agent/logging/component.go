// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// The names for several components: those without a level of their own, and all.
const (
	defaultComponent = "default"
	allComponents    = "all"
)

// levelNone is above every level that is logged.
const levelNone = slog.LevelError + 4

// componentOf returns the component for a name in a flag: a component of the agent, or
// one of pilot-agent's names. Some of these log nothing here.
func componentOf(name string) (component string, ok bool) {
	switch name {
	case defaultComponent, allComponents, "ca", "envoy", "lastgood", "sds", "sdnotify", "status", "xdsproxy":
		return name, true
	case "citadelclient":
		return "ca", true
	case "ads", "cache", "security": // the SDS server and its sources
		return "sds", true
	case "dns", "gcecred", "googleca", "googlecas", "healthcheck", "iptables", "klog", "model", "platform", "spiffe", "stsclient", "stsserver", "validation", "wasm":
		return name, true
	}
	return "", false
}

// rules are the settings of the flags by component.
type rules struct {
	levels  *Levels
	stacks  map[string]slog.Level
	callers map[string]bool
}

// rule are the settings of one component, except for its level, which may change.
type rule struct {
	stacks slog.Level
	caller bool
}

// of returns the settings of a component.
func (r rules) of(component string) rule {
	return rule{stacks: levelOf(r.stacks, component), caller: r.callers[component] || r.callers[defaultComponent]}
}

// levelOf returns the level of a component, which is the default if it has none of its own.
func levelOf(levels map[string]slog.Level, component string) slog.Level {
	if l, ok := levels[component]; ok {
		return l
	}
	return levels[defaultComponent]
}

// levelNames returns the levels by the names that flags have for them.
func levelNames() map[string]slog.Level {
	return map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError, "fatal": levelNone, "none": levelNone,
	}
}

// parseLevels parses a list such as "default:info,xdsproxy:debug". fallback is the
// default level if the list has none. A component with several names has the level of
// its own name, or else the lowest one.
func parseLevels(flag, list string, fallback slog.Level) (levels map[string]slog.Level, unknown []string, err error) {
	named := levelNames()
	levels = map[string]slog.Level{defaultComponent: fallback}
	others := map[string]slog.Level{}
	for item := range strings.SplitSeq(list, ",") {
		name, text, found := strings.Cut(strings.TrimSpace(item), ":")
		if !found {
			name, text = defaultComponent, name
		}
		if !found && text == "" {
			continue // an empty item
		}
		level, ok := named[text]
		if !ok {
			return nil, nil, fmt.Errorf("%s is %q: the level %q must be debug, info, warn, error, fatal or none", flag, list, text)
		}
		switch component, known := componentOf(name); {
		case !known:
			unknown = append(unknown, name)
		case component == name:
			levels[name] = level
		default:
			if lowest, ok := others[component]; !ok || level < lowest {
				others[component] = level
			}
		}
	}
	if level, ok := levels[allComponents]; ok {
		return map[string]slog.Level{defaultComponent: level}, unknown, nil
	}
	for component, level := range others {
		if _, own := levels[component]; !own {
			levels[component] = level
		}
	}
	return levels, unknown, nil
}

// parseComponents parses a list of components.
func parseComponents(list string) (components map[string]bool, unknown []string) {
	components = map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		switch component, known := componentOf(name); {
		case name == "":
		case !known:
			unknown = append(unknown, name)
		case component == allComponents:
			components[defaultComponent] = true
		default:
			components[component] = true
		}
	}
	slices.Sort(unknown)
	return components, unknown
}
