// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed files
var files embed.FS

// A kind is one of the packages that are made.
type kind struct {
	name, summary, details string
	// program is a name among the programs, path where it is installed.
	program, path string
	// depends are names of packages, with an optional minimal version.
	depends []dependency
	// contents are the files from directory files by their paths.
	contents map[string]string
	// sources are files of the repository by their paths.
	sources map[string]string
	// settings are the paths that are not replaced if they were changed.
	settings []string
	// restart are the commands of a shell after an upgrade of a running service, state are the
	// directories that a purge removes. Without them the package has no service.
	restart, state string
	commands       bool // the program has completions for shells
	envoy          bool // has Envoy's version and terms
}

// A dependency is a package that is needed.
type dependency struct {
	deb, rpm, version string
}

// kinds are the packages.
var kinds = []kind{
	{
		name: "outrigger", summary: "Command-line tool of the Outrigger service mesh",
		details: "Runs a mesh on one machine, writes objects, and explains what proxies do.",
		program: "outrigger", path: "/usr/bin/outrigger", commands: true,
	},
	{
		name: "outrigger-agent", summary: "Runs the Envoy of a machine in a service mesh",
		details: "Gets certificates and configuration from the control plane, redirects the\nconnections of the machine to Envoy, and runs Envoy.",
		program: "outrigger-agent", path: "/usr/bin/outrigger-agent", commands: true,
		depends: []dependency{{"outrigger-envoy", "outrigger-envoy", "1.36"}, {"systemd", "systemd", ""}},
		contents: map[string]string{
			"/usr/lib/systemd/system/outrigger-agent.service": "outrigger-agent.service",
			"/usr/lib/sysusers.d/outrigger-agent.conf":        "outrigger-agent.sysusers",
			"/usr/lib/tmpfiles.d/outrigger-agent.conf":        "outrigger-agent.tmpfiles",
			"/usr/lib/outrigger/machine":                      "machine",
			"/etc/outrigger/agent.env":                        "agent.env",
			"/etc/logrotate.d/outrigger-agent":                "outrigger-agent.logrotate",
		},
		settings: []string{"/etc/logrotate.d/outrigger-agent", "/etc/outrigger/agent.env"},
		// A restart would end the connections of the machine. The reload replaces the agent, then Envoy.
		restart: "systemctl --no-block try-reload-or-restart outrigger-agent.service",
		state:   "/etc/istio/proxy /var/log/istio",
	},
	{
		name: "outrigger-control", summary: "Control plane of the Outrigger service mesh",
		details: "Serves configuration to proxies and signs their certificates.",
		program: "outrigger-control", path: "/usr/bin/outrigger-control", commands: true,
		depends: []dependency{{"systemd", "systemd", ""}},
		contents: map[string]string{
			"/usr/lib/systemd/system/outrigger-control.service": "outrigger-control.service",
			"/usr/lib/sysusers.d/outrigger-control.conf":        "outrigger-control.sysusers",
			"/usr/lib/tmpfiles.d/outrigger-control.conf":        "outrigger-control.tmpfiles",
			"/etc/outrigger/control.env":                        "control.env",
			"/etc/outrigger/mesh.yaml":                          "mesh.yaml",
		},
		sources:  map[string]string{"/usr/share/outrigger-control/outrigger.rules.yaml": "packaging/prometheus/outrigger.rules.yaml"},
		settings: []string{"/etc/outrigger/control.env", "/etc/outrigger/mesh.yaml"},
		// Proxies keep their configuration meanwhile. A cluster or etcd may be away for long.
		restart: "systemctl --no-block try-restart outrigger-control.service",
		state:   "/var/lib/outrigger-control",
	},
	{
		name: "outrigger-envoy", summary: "Envoy for outrigger-agent",
		details: "The build of Envoy that Outrigger is tested with. A running agent with\n--hot-restart replaces its Envoy after an upgrade without failed requests.",
		program: "envoy", path: "/usr/lib/outrigger/envoy", envoy: true,
		depends: []dependency{{"libc6", "glibc", "2.31"}},
	},
}

// text returns a file of directory files. A name that is not there is a mistake in kinds.
func text(name string) ([]byte, error) { return fs.ReadFile(files, "files/"+name) }

// scripts returns the scripts that dpkg and rpm run, by their name in directory files.
func (k kind) scripts() (map[string][]byte, error) {
	if k.restart == "" {
		return nil, nil
	}
	fill := strings.NewReplacer("@NAME@", k.name, "@RESTART@", k.restart, "@STATE@", k.state)
	found := map[string][]byte{}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		content, err := text(name)
		if err != nil {
			return nil, err
		}
		found[name] = []byte(fill.Replace(string(content)))
	}
	return found, nil
}

// isSetting reports whether a path is a file for the administrator to change.
func (k kind) isSetting(path string) bool { return slices.Contains(k.settings, path) }
