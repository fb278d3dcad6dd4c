// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

const joinLong = `Make this machine part of a mesh, with the token that outrigger join create printed. It
needs root, and the package outrigger-agent.

First it checks the clock, the ports, the kernel, and the way to the control plane, and
lists all problems. Then it proves the identity with the token, over TLS that only
trusts the roots in the token, writes the files of outrigger-agent.service, starts the
service and waits until it is ready.

The token is used up by that. The agent renews its certificate by itself, also after a
reboot. If the machine is off until its certificate expires (24 hours, unless the
control plane says otherwise), it has to join again.

With -, the token comes from the standard input: other users see arguments.`

const joinExample = `  sudo outrigger join - < token
  sudo outrigger join --check - < token   # only look for problems
  sudo outrigger leave`

// NewJoinCommand returns the command join, with its command create.
func NewJoinCommand() *cobra.Command {
	var only bool
	timeout := 2 * time.Minute
	cmd := &cobra.Command{
		Use: "join TOKEN|-", Short: "Make this machine part of a mesh", Long: joinLong, Example: joinExample, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := readToken(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return system(cmd.OutOrStdout()).join(cmd.Context(), token, only, timeout)
		},
	}
	cmd.AddCommand(newCreateCommand())
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&only, "check", false, "only check the machine; the token stays valid")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait until the agent is ready")
	return cmd
}

// readToken returns the token of the argument.
func readToken(argument string, in io.Reader) (*join.Token, error) {
	if argument == "-" {
		text, err := io.ReadAll(io.LimitReader(in, join.MaxToken+2))
		if err != nil {
			return nil, err
		}
		argument = string(text)
	}
	return join.Parse(argument)
}

// join makes the machine join.
func (h *host) join(ctx context.Context, t *join.Token, only bool, timeout time.Duration) error {
	if err := h.check(ctx, t); err != nil || only {
		return err
	}
	h.say("joining as %s", t.ID)
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return err
	}
	chain, err := h.enrol(ctx, t, key)
	if err != nil {
		return err
	}
	keyPEM, err := certs.MarshalKey(key)
	if err != nil {
		return err
	}
	if err := h.write(t, chain, keyPEM); err != nil {
		return errors.Join(err, h.remove())
	}
	if !h.managed() {
		h.say("enrolled; systemd does not run here: start the agent with /usr/lib/outrigger/machine rules, then, as istio-proxy, /usr/lib/outrigger/machine run")
		return nil
	}
	return h.start(ctx, timeout)
}

// roots returns the roots of a token.
func roots(t *join.Token) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, root := range t.Roots {
		pool.AddCert(root)
	}
	return pool
}

// A control plane that ends, one of several perhaps, is asked again.
const (
	enrolAttempts = 3
	enrolPause    = time.Second
)

// enrol uses the token up and returns the chain of the certificate for a key.
func (h *host) enrol(ctx context.Context, t *join.Token, key crypto.Signer) ([]*x509.Certificate, error) {
	client, err := caclient.New(caclient.Config{
		Address: t.Address, ClusterID: t.Cluster, Logger: slog.New(slog.DiscardHandler),
		TLS:   func() (*tls.Config, error) { return &tls.Config{RootCAs: roots(t), MinVersion: tls.VersionTLS12}, nil },
		Token: func() (string, error) { return t.Secret, nil },
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); _ = client.Run(ctx) }() // closes the connection
	csr, err := certs.NewCSR(key, t.ID)
	if err != nil {
		return nil, err
	}
	texts, err := client.Sign(ctx, csr, 0)
	for attempt := 1; attempt < enrolAttempts && status.Code(err) == codes.Unavailable; attempt++ {
		h.say("trying again: %v", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(enrolPause):
		}
		texts, err = client.Sign(ctx, csr, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("enrolling: %w", err)
	}
	var chain []*x509.Certificate
	for _, text := range texts {
		parsed, err := certs.ParseChain(text)
		if err != nil {
			return nil, fmt.Errorf("enrolling: the certificate of the control plane: %w", err)
		}
		chain = append(chain, parsed...)
	}
	return chain, verify(t, chain, key)
}

// verify returns an error unless a chain is that of the identity and the key, below the roots of the
// token.
func verify(t *join.Token, chain []*x509.Certificate, key crypto.Signer) error {
	id, err := certs.CertificateID(chain[0])
	switch {
	case err != nil:
		return fmt.Errorf("enrolling: the certificate of the control plane: %w", err)
	case id != t.ID:
		return fmt.Errorf("enrolling: the certificate is for %s, the token for %s: use the token of one outrigger join create", id, t.ID)
	case !certs.SamePublicKey(chain[0].PublicKey, key.Public()):
		return errors.New("enrolling: the certificate is for another key")
	}
	opts := x509.VerifyOptions{Roots: roots(t), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return fmt.Errorf("enrolling: the certificate is not below the roots in the token: %w", err)
	}
	return nil
}

// say prints a line of progress.
func (h *host) say(format string, args ...any) {
	_, _ = fmt.Fprintln(h.out, clip.Cut(fmt.Sprintf(format, args...), 1000)) // a closed terminal must not end it
}

// system returns this machine.
func system(out io.Writer) *host {
	return &host{root: "/", out: out, uid: os.Geteuid(), account: user.Lookup, run: runProgram, running: "/run/systemd/system"}
}
