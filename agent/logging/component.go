// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// The names that stand for more than one scope: those without an entry of
// their own, and all.
const (
	scopeDefault = "default"
	scopeAll     = "all"
)

// levelNone is above every level that is logged.
const levelNone = slog.LevelError + 4

// componentOf finds the part of the agent whose lines a scope means: one of
// its parts, or one of the names that pilot-agent's log has for them. Some of
// these have no lines here.
func componentOf(scope string) (component string, ok bool) {
	switch scope {
	case scopeDefault, scopeAll, "ca", "envoy", "sds", "status", "xdsproxy":
		return scope, true
	case "citadelclient":
		return "ca", true
	case "ads", "cache", "security": // the server of secrets and what feeds it
		return "sds", true
	case "dns", "gcecred", "googleca", "googlecas", "healthcheck", "iptables", "klog", "model", "platform", "spiffe", "stsclient", "stsserver", "validation", "wasm":
		return scope, true
	}
	return "", false
}

// rules are what the flags say of each scope, or else of the default one.
type rules struct {
	levels, stacks map[string]slog.Level
	callers        map[string]bool
}

// rule is what counts for one scope.
type rule struct {
	lowest, stacks slog.Level
	caller         bool
}

func (r rules) of(scope string) rule {
	level := func(levels map[string]slog.Level) slog.Level {
		if l, ok := levels[scope]; ok {
			return l
		}
		return levels[scopeDefault]
	}
	return rule{lowest: level(r.levels), stacks: level(r.stacks), caller: r.callers[scope] || r.callers[scopeDefault]}
}

// parseLevels reads "default:info,xdsproxy:debug". fallback is the level of
// the default scope when it is not named. A scope that two names mean has the
// level of its own name, or the lowest one.
func parseLevels(flag, list string, fallback slog.Level) (levels map[string]slog.Level, unknown []string, err error) {
	named := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError, "fatal": levelNone, "none": levelNone,
	}
	levels = map[string]slog.Level{scopeDefault: fallback}
	others := map[string]slog.Level{}
	for item := range strings.SplitSeq(list, ",") {
		scope, name, found := strings.Cut(strings.TrimSpace(item), ":")
		if !found {
			scope, name = scopeDefault, scope
		}
		if !found && name == "" {
			continue // nothing between two commas
		}
		level, ok := named[name]
		if !ok {
			return nil, nil, fmt.Errorf("%s is %q: the level %q must be debug, info, warn, error, fatal or none", flag, list, name)
		}
		switch component, known := componentOf(scope); {
		case !known:
			unknown = append(unknown, scope)
		case component == scope:
			levels[scope] = level
		default:
			if lowest, ok := others[component]; !ok || level < lowest {
				others[component] = level
			}
		}
	}
	if level, ok := levels[scopeAll]; ok {
		return map[string]slog.Level{scopeDefault: level}, unknown, nil
	}
	for component, level := range others {
		if _, own := levels[component]; !own {
			levels[component] = level
		}
	}
	return levels, unknown, nil
}

// parseScopes reads a list of scopes.
func parseScopes(list string) (scopes map[string]bool, unknown []string) {
	scopes = map[string]bool{}
	for scope := range strings.SplitSeq(list, ",") {
		scope = strings.TrimSpace(scope)
		switch component, known := componentOf(scope); {
		case scope == "":
		case !known:
			unknown = append(unknown, scope)
		case component == scopeAll:
			scopes[scopeDefault] = true
		default:
			scopes[component] = true
		}
	}
	slices.Sort(unknown)
	return scopes, unknown
}
