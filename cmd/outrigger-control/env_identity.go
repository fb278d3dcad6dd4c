// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/server"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// authorityVariables are the rows of the table about certificates.
func authorityVariables() []variable {
	return []variable{
		{"COMPLIANCE_POLICY", "", "restricts TLS of the control plane, of proxies and of agents in pods that it injects: fips-140-2 (TLS 1.2, AES-GCM, P-256), fips-140-3 (TLS 1.2 and 1.3, AES-GCM, P-256 and P-384) or pqc (TLS 1.3, AES-GCM, X25519MLKEM768)", func(e *environment, s string) (err error) {
			e.Compliance, err = tlspolicy.Parse(s)
			return err
		}},
		{"ENABLE_CA_SERVER", "true", "false turns off signing of workload certificates", boolean(func(e *environment) *bool { return &e.CA.Enabled })},
		{"ROOT_CA_DIR", "./etc/cacerts", "directory of a plugged-in certificate authority: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem and ca-crl.pem, or tls.crt, tls.key and ca.crt; reloaded when they change. Without them, or if it is empty, a self-signed root is created", text(func(e *environment) *string { return &e.CA.PluginDir })},
		{"DEFAULT_WORKLOAD_CERT_TTL", "24h", "lifetime of a workload certificate if the request names none", duration(func(e *environment) *time.Duration { return &e.CA.DefaultTTL })},
		{"MAX_WORKLOAD_CERT_TTL", "2160h", "longest lifetime of a workload certificate that may be requested", duration(func(e *environment) *time.Duration { return &e.CA.MaxTTL })},
		{"CITADEL_SELF_SIGNED_CA_CERT_TTL", "87600h", "lifetime of a new self-signed root", duration(func(e *environment) *time.Duration { return &e.CA.Root.TTL })},
		{"CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL", "1h", "how often to check whether a self-signed root must be renewed; 0 means never", func(e *environment, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return fmt.Errorf("%q is not a duration: write for example 1h", s)
			}
			if d <= 0 {
				d = -1
			}
			e.CA.Root.Check = d
			return nil
		}},
		{"CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE", "20", "a self-signed root is renewed when this percentage of its lifetime is left", func(e *environment, s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > 99 {
				return fmt.Errorf("%q is not a percentage: write 1 to 99", s)
			}
			e.CA.Root.Grace = n
			return nil
		}},
		{"OUTRIGGER_CA_KEY_TYPE", "P256", "key type of a new self-signed root: P256, P384, RSA2048, RSA3072 or RSA4096", func(e *environment, s string) error {
			e.CA.Root.KeyType = certs.KeyType(s)
			return e.CA.Root.KeyType.Validate()
		}},
		{"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE", "", "2048, 3072 or 4096 create an RSA root of that size; overrides OUTRIGGER_CA_KEY_TYPE", func(e *environment, s string) error {
			if s == "" {
				return nil
			}
			if e.CA.Root.KeyType = certs.KeyType("RSA" + s); e.CA.Root.KeyType.Validate() != nil {
				return fmt.Errorf("%q is not the size of an RSA key: write 2048, 3072 or 4096", s)
			}
			return nil
		}},
		{"OUTRIGGER_CA_PROPAGATION", "0s", "time from the distribution of a new root until it signs; 0 means until each workload has renewed its certificate", duration(func(e *environment) *time.Duration { return &e.CA.Propagation })},
		{"CA_TRUSTED_NODE_ACCOUNTS", "", "namespace/serviceaccount of node proxies, comma-separated, which may request certificates for the workloads on their node; requires Kubernetes", func(e *environment, s string) error {
			var err error
			e.CA.NodeAccounts, err = parseNodeAccounts(s)
			return err
		}},
		{"OUTRIGGER_CA_CALLER_RATE", "10", "limit of certificate requests per second of one workload, with bursts of ten times as many; 0 means no limit", perSecond(func(e *environment) *float64 { return &e.CA.CallerRate })},
		{"OUTRIGGER_CA_IDENTITY_RATE", "100", "limit of certificate requests per second for one identity, with bursts of ten times as many; 0 means no limit", perSecond(func(e *environment) *float64 { return &e.CA.IdentityRate })},
	}
}

// signerVariables are the rows of the table about other signers.
func signerVariables() []variable {
	return []variable{
		{"EXTERNAL_CA", "", server.RegistrationAuthority + " signs workload certificates through the CertificateSigningRequest API of Kubernetes; the control plane approves the requests. The roots of the signers belong into " + server.SignerRootFile + ", or into caCertificates of the mesh config", func(e *environment, s string) error {
			if s != "" && s != server.RegistrationAuthority {
				return fmt.Errorf("%q is not supported: write %s, or leave it empty to sign with the own authority", s, server.RegistrationAuthority)
			}
			e.CA.Signer.External = s
			return nil
		}},
		{"K8S_SIGNER", "", "full name of the signer of requests that name none; empty signs them with the own authority", text(func(e *environment) *string { return &e.CA.Signer.Name })},
		{"CERT_SIGNER_DOMAIN", "", "domain of the signers that requests may name (CERT_SIGNER of an agent); empty allows only K8S_SIGNER", text(func(e *environment) *string { return &e.CA.Signer.Domain })},
	}
}

// callerVariables are the rows of the table about the authentication of callers.
func callerVariables() []variable {
	return []variable{
		{"JWT_RULE", "", "accepted tokens: Istio's JWTRule as JSON (issuer, audiences, jwks or jwksUri with file:// or https://; without keys, they are found by OpenID Connect Discovery)", text(func(e *environment) *string { return &e.Callers.JWTRule })},
		{"TOKEN_ISSUER", "", "another issuer of accepted tokens, whose keys are found by OpenID Connect Discovery; requires AUDIENCE", text(func(e *environment) *string { return &e.Callers.Issuer })},
		{"AUDIENCE", "", "required audience of tokens of TOKEN_ISSUER", text(func(e *environment) *string { return &e.Callers.Audience })},
		{"OUTRIGGER_JWT_HOSTS", "", "additional hosts, as host or host:port, comma-separated, from which token keys may be fetched, besides those of the issuer and of jwksUri; localhost or an address of this machine also allows the addresses of this machine", func(e *environment, s string) error {
			e.Callers.Hosts = names(s)
			return nil
		}},
		{"TOKEN_AUDIENCES", "istio-ca", "with Kubernetes: accepted audiences of service account tokens, comma-separated", func(e *environment, s string) error {
			if e.Callers.KubernetesAudiences = names(s); len(e.Callers.KubernetesAudiences) == 0 {
				return fmt.Errorf("%q names no audience: write for example istio-ca", s)
			}
			return nil
		}},
		{"REQUIRE_3P_TOKEN", "false", "with Kubernetes: true rejects tokens without an audience, which old versions of Kubernetes put into each pod", boolean(func(e *environment) *bool { return &e.Callers.RequireAudience })},
	}
}

// keySetVariables are the rows of the table about the keys of RequestAuthentications.
func keySetVariables() []variable {
	return []variable{
		{"PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "20m", "interval for fetching the keys of RequestAuthentications with jwksUri or without keys; a shorter max-age of the answer counts, but not below 1m. After a failure they are fetched again after 1s, at most 1m", func(e *environment, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil || d < time.Second {
				return fmt.Errorf("%q is not a duration of at least 1s: write for example 20m", s)
			}
			e.KeySets.Refresh = d
			return nil
		}},
		{"OUTRIGGER_JWKS_ALLOWED_HOSTS", "", "hosts, host:port, addresses or CIDRs on loopback, link-local and metadata addresses from which these keys may be fetched, comma-separated", func(e *environment, s string) error {
			e.KeySets.AllowedHosts = names(s)
			return nil
		}},
		{"OUTRIGGER_JWKS_ROOTS", "/cacerts/extra.pem", "file with roots for the servers of these keys, in addition to those of the system, if it exists; empty reads none", text(func(e *environment) *string { return &e.KeySets.RootFile })},
	}
}

// denyVariables are the rows of the table about the deny list.
func denyVariables() []variable {
	return []variable{
		{"OUTRIGGER_DENY_LIST", "", "file with identities and certificate serial numbers that the mesh rejects, one per line: spiffe://cluster.local/ns/shop/sa/web, spiffe://cluster.local/ns/shop/sa/* for a whole namespace, or serial 3F2A9C; text after # is a comment. It is reloaded when it changes; if the new version has an error, the last valid list stays in force", text(func(e *environment) *string { return &e.DenyList })},
	}
}

func credentialVariables() []variable {
	return []variable{
		{"OUTRIGGER_CREDENTIALS", "", "source of the Secrets with gateway certificates, and of the ConfigMaps with roots: fs:///directory, with ?links=/other if symbolic links may lead to /other, or k8s:// for those of the cluster; empty serves none", text(func(e *environment) *string { return &e.Credentials.Source })},
		{"OUTRIGGER_CREDENTIAL_READERS", "", "with fs://: service accounts whose gateways may read the Secrets of their namespace, as namespace/account, comma-separated; * means all accounts of a namespace. In a cluster the permission to list Secrets decides", func(e *environment, s string) (err error) {
			e.Credentials.Readers, err = accounts(s)
			return err
		}},
	}
}

func perSecond(field func(*environment) *float64) func(*environment, string) error {
	return func(e *environment, s string) error {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || !(n >= 0 && n <= 1e6) {
			return fmt.Errorf("%q is not a number of requests per second: write for example 10", s)
		}
		if n == 0 {
			n = -1
		}
		*field(e) = n
		return nil
	}
}

func parseNodeAccounts(list string) (map[string]bool, error) {
	accounts := map[string]bool{}
	for _, account := range strings.Split(list, ",") {
		if account = strings.TrimSpace(account); account == "" {
			continue
		}
		namespace, name, found := strings.Cut(account, "/")
		if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is not an account: write namespace/serviceaccount", account)
		}
		accounts[account] = true
	}
	return accounts, nil
}

// names splits a comma-separated list.
func names(list string) (out []string) {
	for _, name := range strings.Split(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// accounts parses a list of service accounts.
func accounts(list string) ([]string, error) {
	var all []string
	for account := range strings.SplitSeq(list, ",") {
		if account = strings.TrimSpace(account); account == "" {
			continue
		}
		namespace, name, ok := strings.Cut(account, "/")
		if !ok || namespace == "" || namespace == "*" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is not an account: write namespace/account or namespace/*", account)
		}
		all = append(all, account)
	}
	return all, nil
}

func certProvider(e *environment, s string) error {
	if s != server.CertProviderIstiod && s != server.CertProviderCustom {
		return fmt.Errorf("%q is not supported: write %s (the certificate authority issues the control plane's own certificate) or %s (it is in files)", s, server.CertProviderIstiod, server.CertProviderCustom)
	}
	e.TLS.Provider = s
	return nil
}
