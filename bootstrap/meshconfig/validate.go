// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ValidateProxyConfig checks a resolved ProxyConfig. The error lists all problems; each line names
// the field, its value and the cure.
func ValidateProxyConfig(pc *meshv1alpha1.ProxyConfig) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if pc.GetConfigPath() == "" {
		fail("configPath is empty; it must name the directory for the bootstrap and the XDS socket")
	}
	if pc.GetBinaryPath() == "" {
		fail("binaryPath is empty; it must name the Envoy binary")
	}
	if d := pc.GetDrainDuration(); d != nil {
		if v := d.AsDuration(); d.CheckValid() != nil || v < time.Second || v > time.Hour || v%time.Second != 0 {
			fail("drainDuration is %s; it must be whole seconds from 1s to 1h", spell(d))
		}
	} else {
		fail("drainDuration is not set; it must be whole seconds from 1s to 1h")
	}
	if d := pc.GetTerminationDrainDuration(); d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		fail("terminationDrainDuration is %s; it must not be negative", spell(d))
	}
	if err := CheckAddress(pc.GetDiscoveryAddress()); err != nil {
		fail("discoveryAddress is %q: %w", pc.GetDiscoveryAddress(), err)
	}
	if p := pc.GetProxyAdminPort(); p < 1 || p > 65535 {
		fail("proxyAdminPort is %d; it must be from 1 to 65535", p)
	}
	if p := pc.GetStatusPort(); p < 0 || p > 65535 {
		fail("statusPort is %d; it must be from 0 to 65535", p)
	}
	if c := pc.GetConcurrency().GetValue(); c < 0 {
		fail("concurrency is %d; it must not be negative", c)
	}
	return errors.Join(errs...)
}

func validateMesh(mesh *meshv1alpha1.MeshConfig) error {
	var errs []error
	port := func(name string, value int32, zero bool) {
		if value < 0 || value > 65535 || (value == 0 && !zero) {
			errs = append(errs, fmt.Errorf("%s is %d; it must be from 1 to 65535", name, value))
		}
	}
	port("proxyListenPort", mesh.GetProxyListenPort(), false)
	port("proxyInboundListenPort", mesh.GetProxyInboundListenPort(), false)
	port("proxyHttpPort", mesh.GetProxyHttpPort(), true)
	trustDomain := func(name, value string) {
		switch {
		case value == "":
			errs = append(errs, fmt.Errorf("%s is empty; it must be a domain such as cluster.local", name))
		case !isDomain(value):
			errs = append(errs, fmt.Errorf("%s is %q; it must be a domain such as cluster.local: letters, digits, \"-\" and \".\"", name, value))
		}
	}
	trustDomain("trustDomain", mesh.GetTrustDomain())
	for _, alias := range mesh.GetTrustDomainAliases() { // sorted, so their positions tell nothing
		trustDomain("one of trustDomainAliases", alias)
	}
	if mesh.GetRootNamespace() == "" {
		errs = append(errs, errors.New("rootNamespace is empty; it must be a namespace such as istio-system"))
	}
	if d := mesh.GetConnectTimeout(); d != nil && (d.CheckValid() != nil || d.AsDuration() < time.Millisecond || d.AsDuration() > 30*time.Second) {
		errs = append(errs, fmt.Errorf("connectTimeout is %s; it must be from 1ms to 30s", spell(d)))
	}
	if err := ValidateProxyConfig(mesh.GetDefaultConfig()); err != nil {
		errs = append(errs, fmt.Errorf("defaultConfig: %w", err))
	}
	return errors.Join(errs...)
}

// isDomain reports whether a trust domain is written like a DNS name. Like Istio, it allows a
// trailing dot.
func isDomain(s string) bool {
	const longest, longestLabel = 255, 63
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > longestLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.ContainsFunc(label, func(r rune) bool {
			return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			return false
		}
	}
	return len(s) <= longest
}

// CheckAddress returns an error unless the address has the form host:port with a port from 1 to
// 65535.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
		return errors.New("it must be host:port (an IPv6 address in brackets)")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port %q must be from 1 to 65535", port)
	}
	return nil
}

func spell(d *durationpb.Duration) string {
	if err := d.CheckValid(); err != nil {
		return "out of range"
	}
	return d.AsDuration().String()
}
