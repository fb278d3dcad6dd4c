// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names and ports that the parts of a mesh agree on.
const (
	rootNamespace    = "istio-system"
	clusterDomain    = "cluster.local"
	controlName      = "control"
	workloadLabel    = "outrigger.mesh/workload"
	appLabel         = "app"
	defaultNamespace = "default"
	defaultNetwork   = "127.1.0.0/24"

	// proxyPortSetting is the field of MeshConfig with the port of outbound HTTP.
	proxyPortSetting = "proxyHttpPort"

	controlHTTPPort    = 8080
	controlSecurePort  = 15012
	controlMonitorPort = 15014

	adminPort      = 15000
	debugPort      = 15004
	statusPort     = 15020
	healthPort     = 15021
	prometheusPort = 15090
	proxyHTTPPort  = 15080
	dnsPort        = 15053
)

// meshFile is a mesh file, checked and with its defaults filled in.
type meshFile struct {
	file        string         // absolute path
	lines       map[string]int // of the fields that were given
	configDir   string         // absolute path, "" for none
	newConfig   bool           // configDir is not there yet
	trustDomain string
	settings    map[string]any // the user's MeshConfig
	proxyPort   int            // settings.proxyHttpPort or its default
	network     netip.Prefix
	workloads   []*workload
}

// workload is one entry of the list of workloads.
type workload struct {
	line           int
	where          string         // names the workload in messages
	lines          map[string]int // of the fields that were given
	name           string
	namespace      string
	service        string
	serviceAccount string
	labels         map[string]string
	command        []string // as written, before expansion
	env            []variable
	dir            string
	port           int
	servicePort    int
	protocol       string
	address        netip.Addr
	readyPath      string
}

// variable is one variable of an environment.
type variable struct{ name, value string }

// listens reports whether the application serves a port. One that does not is
// no endpoint of any service; it only asks others.
func (w *workload) listens() bool { return w.port > 0 }

// lineOf returns the line of a field, or of the workload when the field was
// not given.
func (w *workload) lineOf(field string) int {
	if l, ok := w.lines[field]; ok {
		return l
	}
	return w.line
}

// selector returns the labels that select this workload and no other.
func (w *workload) selector() map[string]string {
	return map[string]string{workloadLabel: w.name}
}

// controlAddress is the address of the control plane: the first one of the
// network.
func (m *meshFile) controlAddress() netip.Addr { return m.network.Addr().Next() }

// dir is the directory of the mesh file.
func (m *meshFile) dir() string { return filepath.Dir(m.file) }

// Problem is one thing wrong with a mesh file or with the machine it shall
// run on.
type Problem struct {
	// Line of the mesh file, 0 when the problem has no line.
	Line int
	// Text is a sentence that names the place, the value and the cure.
	Text string
}

// Invalid is the error of a mesh that cannot be started. Its text lists every
// problem.
type Invalid struct {
	File     string
	Problems []Problem
}

// Error lists the problems, one on each line.
func (e *Invalid) Error() string {
	var b strings.Builder
	noun := "problems"
	if len(e.Problems) == 1 {
		noun = "problem"
	}
	fmt.Fprintf(&b, "nothing was started: %d %s", len(e.Problems), noun)
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%s:%d: ", e.File, p.Line)
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// maxMeshFile is the size of a mesh file, in bytes, far above any that a
// person writes.
const maxMeshFile = 4 << 20

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxMeshFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(data) > maxMeshFile {
		return nil, fmt.Errorf("%s is larger than %d MB, which no mesh file is", path, maxMeshFile>>20)
	}
	return data, nil
}

// load reads and checks a mesh file. The mesh is complete only when there are
// no problems.
func load(path string) (*meshFile, []Problem) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, []Problem{{Text: err.Error()}}
	}
	data, err := readLimited(abs)
	if err != nil {
		return nil, []Problem{{Text: fmt.Sprintf("%v; name a mesh file with -f, for example -f examples/shop/mesh.yaml", err)}}
	}
	m, problems := decode(data)
	if m == nil {
		return nil, problems
	}
	m.file = abs
	problems = append(problems, m.complete()...)
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return m, problems
}
