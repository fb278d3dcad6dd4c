// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// AppScrape is where the application serves its own metrics.
type AppScrape struct {
	// Port is the application's port on this machine.
	Port int
	// Path begins with a slash and may hold a query.
	Path string
}

// URL returns the address to fetch.
func (a *AppScrape) URL() string {
	return "http://" + net.JoinHostPort("localhost", strconv.Itoa(a.Port)) + a.Path
}

// ParseScrape reads ISTIO_PROMETHEUS_ANNOTATIONS, the scrape annotations of the
// application: {"scrape": "true", "path": "/metrics", "port": "8080"}. Empty text
// and a scrape of "false" give nil. statusPort is the agent's own, which must not
// be scraped by itself.
func ParseScrape(text string, statusPort int) (*AppScrape, error) {
	if text == "" {
		return nil, nil
	}
	var annotations struct {
		Scrape string `json:"scrape"`
		Path   string `json:"path"`
		Port   string `json:"port"`
	}
	const name = "ISTIO_PROMETHEUS_ANNOTATIONS"
	if err := json.Unmarshal([]byte(text), &annotations); err != nil {
		return nil, fmt.Errorf(`%s: %w; it must be an object of strings: {"scrape": "true", "path": "/metrics", "port": "8080"}`, name, err)
	}
	if annotations.Scrape == "false" {
		return nil, nil
	}
	scrape := &AppScrape{Port: 80, Path: "/metrics"}
	if annotations.Port != "" {
		port, err := strconv.Atoi(annotations.Port)
		if err != nil || port < 1 || port > maxPort {
			return nil, fmt.Errorf("%s: port is %q: use a number from 1 to %d", name, annotations.Port, maxPort)
		}
		scrape.Port = port
	}
	if scrape.Port == statusPort {
		return nil, fmt.Errorf("%s: port is %d, the agent's own status port: name the application's port, the agent adds its metrics by itself", name, statusPort)
	}
	if annotations.Path != "" {
		scrape.Path = "/" + strings.TrimPrefix(annotations.Path, "/")
	}
	if strings.ContainsFunc(scrape.Path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }) {
		return nil, fmt.Errorf("%s: path is %q: it must not hold spaces, control characters or #", name, annotations.Path)
	}
	return scrape, nil
}
