// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	pathpkg "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

const (
	maxPort     = 65535
	probePrefix = "/app-health/"
	hookPrefix  = "/app-lifecycle/"
	// maxTimeoutSeconds keeps a timeout from overflowing a duration.
	maxTimeoutSeconds = 1 << 20
)

var probePath = regexp.MustCompile(`^(/app-health/[^/]+/(livez|readyz|startupz)|/app-lifecycle/[^/]+/(poststartz|prestopz))$`)

// Probers are the application's probes and hooks by their path at the status port:
// those below /app-lifecycle/ are hooks.
type Probers map[string]*Prober

// Prober is one probe: exactly one of HTTPGet, TCPSocket and GRPC is set.
type Prober struct {
	HTTPGet   *HTTPGet
	TCPSocket *TCPSocket
	GRPC      *GRPCCheck
	// Timeout is 0 if none is configured.
	Timeout time.Duration
}

// HTTPGet is a probe over HTTP.
type HTTPGet struct {
	// Scheme is http or https.
	Scheme string
	// Host to connect to; "" means the instance's address.
	Host string
	Port int
	// Path is the path of the variable, including its query.
	Path string
	// Header are headers to send unless the incoming request has them.
	Header http.Header
	// Client sends the probe. nil means a separate client that behaves like the kubelet.
	Client *probe.Client
}

// TCPSocket is a probe that opens a connection.
type TCPSocket struct {
	// Host to connect to; "" means the instance's address.
	Host string
	Port int
}

// GRPCCheck is a probe with gRPC's health protocol.
type GRPCCheck struct {
	Port    int
	Service string
}

// The JSON types of ISTIO_KUBE_APP_PROBERS: those of a Kubernetes container probe.
type (
	proberJSON struct {
		HTTPGet        *httpGetJSON   `json:"httpGet"`
		TCPSocket      *tcpSocketJSON `json:"tcpSocket"`
		GRPC           *grpcJSON      `json:"grpc"`
		TimeoutSeconds int64          `json:"timeoutSeconds"`
	}
	httpGetJSON struct {
		Path        string          `json:"path"`
		Port        json.RawMessage `json:"port"`
		Host        string          `json:"host"`
		Scheme      string          `json:"scheme"`
		HTTPHeaders []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"httpHeaders"`
	}
	tcpSocketJSON struct {
		Port json.RawMessage `json:"port"`
		Host string          `json:"host"`
	}
	grpcJSON struct {
		Port    json.RawMessage `json:"port"`
		Service *string         `json:"service"`
	}
)

// ParseProbers parses ISTIO_KUBE_APP_PROBERS: a JSON object from paths such as
// "/app-health/<container>/readyz" to probes. Empty text means none.
func ParseProbers(text string) (Probers, error) {
	const name = "ISTIO_KUBE_APP_PROBERS"
	if text == "" {
		return nil, nil
	}
	var read map[string]*proberJSON
	if err := json.Unmarshal([]byte(text), &read); err != nil {
		return nil, fmt.Errorf(`%s: %w; it must be an object from paths to probes: {"/app-health/<container>/readyz": {"httpGet": {"port": 8080}}}`, name, err)
	}
	probers := make(Probers, len(read))
	for _, path := range slices.Sorted(maps.Keys(read)) {
		if !probePath.MatchString(path) {
			return nil, fmt.Errorf("%s: the key %q is not a probe's path: use %s<container>/ and then livez, readyz or startupz, or %s<container>/ and then poststartz or prestopz",
				name, path, probePrefix, hookPrefix)
		}
		prober, err := read[path].prober()
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, path, err)
		}
		probers[path] = prober
	}
	return probers, nil
}

// Share makes one client send all HTTP probes, and another one all hooks. Both use cfg's
// source address rather than that of the server's configuration.
func (p Probers) Share(cfg probe.ClientConfig) error {
	probes, err := probe.NewClient(cfg)
	if err != nil {
		return err
	}
	hooks, err := probe.NewClient(hookClient(cfg))
	if err != nil {
		return err
	}
	for path, prober := range p {
		switch {
		case prober.HTTPGet == nil:
		case strings.HasPrefix(path, hookPrefix):
			prober.HTTPGet.Client = hooks
		default:
			prober.HTTPGet.Client = probes
		}
	}
	return nil
}

// hooks reports whether there are lifecycle hooks.
func (p Probers) hooks() bool {
	for path := range p {
		if strings.HasPrefix(path, hookPrefix) {
			return true
		}
	}
	return false
}

// hookClient returns the configuration of the client for hooks, given that for probes:
// the kubelet offers HTTP/2 only for probes.
func hookClient(cfg probe.ClientConfig) probe.ClientConfig {
	cfg.HTTP1Only = true
	return cfg
}

func (j *proberJSON) prober() (*Prober, error) {
	if j == nil {
		return nil, errors.New("it is null: set one of httpGet, tcpSocket and grpc")
	}
	if j.TimeoutSeconds < 0 || j.TimeoutSeconds > maxTimeoutSeconds {
		return nil, fmt.Errorf("timeoutSeconds is %d: use a number from 0 to %d", j.TimeoutSeconds, maxTimeoutSeconds)
	}
	p := &Prober{Timeout: time.Duration(j.TimeoutSeconds) * time.Second}
	given := 0
	var err error
	if j.HTTPGet != nil {
		given++
		p.HTTPGet, err = j.HTTPGet.httpGet()
	}
	if j.TCPSocket != nil && err == nil {
		given++
		p.TCPSocket = &TCPSocket{Host: j.TCPSocket.Host}
		p.TCPSocket.Port, err = portOf("tcpSocket", j.TCPSocket.Port)
	}
	if j.GRPC != nil && err == nil {
		given++
		p.GRPC = &GRPCCheck{}
		if j.GRPC.Service != nil {
			p.GRPC.Service = *j.GRPC.Service
		}
		p.GRPC.Port, err = portOf("grpc", j.GRPC.Port)
	}
	if err != nil {
		return nil, err
	}
	if given != 1 {
		return nil, fmt.Errorf("it has %d of httpGet, tcpSocket and grpc: set exactly one", given)
	}
	return p, nil
}

func (j *httpGetJSON) httpGet() (*HTTPGet, error) {
	port, err := portOf("httpGet", j.Port)
	if err != nil {
		return nil, err
	}
	get := &HTTPGet{Scheme: "http", Host: j.Host, Port: port, Path: pathOf(j.Path), Header: http.Header{}}
	switch strings.ToUpper(j.Scheme) {
	case "", "HTTP":
	case "HTTPS":
		get.Scheme = "https"
	default:
		return nil, fmt.Errorf("httpGet.scheme is %q: use HTTP or HTTPS", j.Scheme)
	}
	for _, h := range j.HTTPHeaders {
		if h.Name == "" {
			return nil, errors.New("httpGet.httpHeaders contains a header without a name")
		}
		get.Header.Add(h.Name, h.Value)
	}
	return get, nil
}

// pathOf returns a path with a leading slash. It does not change a path with a host, of
// which the kubelet uses the part after the host; see probe.URL.
func pathOf(path string) string {
	if strings.HasPrefix(path, "/") || strings.Contains(path, "://") {
		return path
	}
	return "/" + path
}

// portOf parses a port, which must be a number: names of ports are defined in the pod's
// specification, and are resolved before.
func portOf(kind string, raw json.RawMessage) (int, error) {
	port, err := strconv.Atoi(strings.Trim(string(bytes.TrimSpace(raw)), `"`))
	switch {
	case len(raw) == 0:
		return 0, fmt.Errorf("%s.port is missing: use a number from 1 to %d", kind, maxPort)
	case err != nil || port < 1 || port > maxPort:
		return 0, fmt.Errorf("%s.port is %s: use a number from 1 to %d, not the name of a port, which only the pod's specification can resolve", kind, raw, maxPort)
	}
	return port, nil
}

// checkLoop returns an error for a probe that would request itself.
func (p Probers) checkLoop(own net.Addr) error {
	tcp, ok := own.(*net.TCPAddr)
	if !ok {
		return nil
	}
	for _, path := range slices.Sorted(maps.Keys(p)) {
		get := p[path].HTTPGet
		if get == nil || get.Port != tcp.Port || get.Host != "" {
			continue
		}
		u := probe.URL(get.Scheme, "host", get.Port, get.Path)
		// Go's server redirects paths with dots or double slashes, and the redirect would be followed.
		if target := pathpkg.Clean(u.Path) + "/"; strings.HasPrefix(target, probePrefix) || strings.HasPrefix(target, hookPrefix) {
			return fmt.Errorf("the probe %q requests %q from the agent's own status port, which would never end: name the application's port", path, get.Path)
		}
	}
	return nil
}
