// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// AppScrape is one metrics endpoint of the application.
type AppScrape struct {
	// Port is the application's port on this machine.
	Port int
	// Path begins with a slash and may have a query.
	Path string
}

// URL returns the URL of the endpoint.
func (a AppScrape) URL() string {
	return "http://" + net.JoinHostPort("localhost", strconv.Itoa(a.Port)) + a.Path
}

// annotations are the scrape annotations of the application, as the injector passes
// them on.
type annotations struct {
	Scrape  string   `json:"scrape"`
	Path    string   `json:"path"`
	Port    string   `json:"port"`
	Targets []target `json:"targets"`
}

type target struct {
	Port string `json:"port"`
	Path string `json:"path"`
}

// ParseScrape returns the metrics endpoints of the application.
//
// text is ISTIO_PROMETHEUS_ANNOTATIONS: {"scrape": "true", "path": "/metrics",
// "port": "8080"}, or with several {"targets": [{"port": "8080", "path":
// "/metrics"}]} instead of path and port. targets is the annotation
// prometheus.istio.io/scrape-targets: "8080:/metrics,8081:/stats"; it overrides path
// and port. Without both, or if scrape is "false", there are no endpoints. statusPort
// is the agent's own port, which must not scrape itself.
func ParseScrape(text, targets string, statusPort int) ([]AppScrape, error) {
	const variable, annotation = "ISTIO_PROMETHEUS_ANNOTATIONS", "annotation prometheus.istio.io/scrape-targets"
	var a annotations
	if text != "" {
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return nil, fmt.Errorf(`%s: %w; it must be an object of strings: {"scrape": "true", "path": "/metrics", "port": "8080"}`, variable, err)
		}
	}
	if a.Scrape == "false" || text == "" && targets == "" {
		return nil, nil
	}
	name, wanted := variable, a.Targets
	switch {
	case targets != "":
		name, wanted = annotation, splitTargets(targets)
	case len(wanted) == 0:
		wanted = []target{{Port: a.Port, Path: a.Path}}
	}
	var scrapes []AppScrape
	for _, t := range wanted {
		scrape, err := t.parse(name, statusPort)
		if err != nil {
			return nil, err
		}
		if slices.Contains(scrapes, scrape) {
			return nil, fmt.Errorf("%s: %s is named twice", name, scrape.URL())
		}
		scrapes = append(scrapes, scrape)
	}
	return scrapes, nil
}

// splitTargets parses a list such as "8080:/metrics,8081:/stats".
func splitTargets(list string) []target {
	var targets []target
	for item := range strings.SplitSeq(list, ",") {
		port, path, _ := strings.Cut(strings.TrimSpace(item), ":")
		targets = append(targets, target{Port: port, Path: path})
	}
	return targets
}

func (t target) parse(name string, statusPort int) (AppScrape, error) {
	scrape := AppScrape{Port: 80, Path: "/metrics"}
	if t.Port != "" {
		port, err := strconv.Atoi(t.Port)
		if err != nil || port < 1 || port > maxPort {
			return AppScrape{}, fmt.Errorf("%s: port is %q: use a number from 1 to %d", name, t.Port, maxPort)
		}
		scrape.Port = port
	}
	if scrape.Port == statusPort {
		return AppScrape{}, fmt.Errorf("%s: port is %d, the agent's own status port: name the application's port; the agent adds its own metrics", name, statusPort)
	}
	if t.Path != "" {
		scrape.Path = "/" + strings.TrimPrefix(t.Path, "/")
	}
	if strings.ContainsFunc(scrape.Path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }) {
		return AppScrape{}, fmt.Errorf("%s: path is %q: it must not contain spaces, control characters or #", name, t.Path)
	}
	return scrape, nil
}
