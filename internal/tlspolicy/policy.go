// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package tlspolicy

import (
	"crypto/tls"
	"fmt"
	"slices"
)

// Policy is the name of a policy. The empty one restricts nothing.
type Policy string

// The policies.
const (
	FIPS1402 Policy = "fips-140-2" // TLS 1.2 with AES-GCM and P-256
	FIPS1403 Policy = "fips-140-3" // TLS 1.2 and 1.3 with AES-GCM and P-256 or P-384
	PQC      Policy = "pqc"        // TLS 1.3 with AES-GCM and X25519MLKEM768
)

// Parse returns the policy of a name.
func Parse(name string) (Policy, error) {
	if p := Policy(name); p == "" || p.rules() != nil {
		return p, nil
	}
	return "", fmt.Errorf("is %q: write %s, %s or %s, or unset it", name, FIPS1402, FIPS1403, PQC)
}

// Envoy are parameters of TLS, with the names that Envoy has for them.
type Envoy struct {
	Oldest, Newest  string   // versions
	Ciphers, Curves []string // Ciphers are those of TLS 1.2
	Compliance      string   // Envoy's own name of the policy; it restricts the ciphers of TLS 1.3, too
}

type rules struct {
	oldest, newest uint16
	curves         []tls.CurveID
	envoy          Envoy
}

func (p Policy) rules() *rules {
	switch p {
	case FIPS1402:
		return &rules{tls.VersionTLS12, tls.VersionTLS12, []tls.CurveID{tls.CurveP256}, Envoy{
			Oldest: "TLSv1_2", Newest: "TLSv1_2", Ciphers: ciphers(), Curves: []string{"P-256"},
		}}
	case FIPS1403:
		return &rules{tls.VersionTLS12, tls.VersionTLS13, []tls.CurveID{tls.CurveP256, tls.CurveP384}, Envoy{
			Oldest: "TLSv1_2", Newest: "TLSv1_3", Ciphers: ciphers(), Curves: []string{"P-256", "P-384"}, Compliance: "FIPS_202205",
		}}
	case PQC:
		return &rules{tls.VersionTLS13, tls.VersionTLS13, []tls.CurveID{tls.X25519MLKEM768}, Envoy{
			Oldest: "TLSv1_3", Newest: "TLSv1_3", Ciphers: ciphers(), Curves: []string{"X25519MLKEM768"},
		}}
	}
	return nil
}

// suites returns the cipher suites of all policies. Those of TLS 1.3 come last.
func suites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384,
	}
}

// ciphers returns Envoy's names of the suites of TLS 1.2.
func ciphers() []string {
	return []string{
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
		"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
	}
}

// Restrict applies the policy to a configuration and returns it. Cipher suites that are set already
// remain if the policy has them. crypto/tls does not let those of TLS 1.3 be chosen, so a
// connection that negotiates another one is closed before data are sent.
func (p Policy) Restrict(cfg *tls.Config) *tls.Config {
	r := p.rules()
	if r == nil {
		return cfg
	}
	cfg.MinVersion, cfg.MaxVersion, cfg.CurvePreferences = r.oldest, r.newest, r.curves
	cfg.CipherSuites = within(cfg.CipherSuites, suites())
	before := cfg.VerifyConnection
	cfg.VerifyConnection = func(c tls.ConnectionState) error {
		if !slices.Contains(suites(), c.CipherSuite) {
			return fmt.Errorf("cipher suite %s is not one of COMPLIANCE_POLICY %s: the peer must offer AES-GCM; on a machine without instructions for AES, set GODEBUG=fips140=on for this program", tls.CipherSuiteName(c.CipherSuite), p)
		}
		if before != nil {
			return before(c)
		}
		return nil
	}
	return cfg
}

// Envoy returns the policy as parameters of Envoy, and whether there is a policy. Of the ciphers that
// are set already those remain that the policy has.
func (p Policy) Envoy(set []string) (params Envoy, restricted bool) {
	r := p.rules()
	if r == nil {
		return Envoy{}, false
	}
	params = r.envoy
	params.Ciphers = within(set, params.Ciphers)
	return params, true
}

// within returns those of set that are allowed, or all that are if none is.
func within[T comparable](set, allowed []T) []T {
	kept := slices.DeleteFunc(slices.Clone(set), func(v T) bool { return !slices.Contains(allowed, v) })
	if len(kept) == 0 {
		return allowed
	}
	return kept
}
