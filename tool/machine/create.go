// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// adminSocket is where the service of the control plane serves administrators.
const adminSocket = "/run/outrigger-control/admin"

// askTimeout limits a request to the control plane.
const askTimeout = 30 * time.Second

const createLong = `Create a one-time token for a machine, and print the line that makes the machine join.
Run it beside the control plane, as root or as the user of the control plane.

Anyone who has the token can get the identity, once, until it expires. It contains the
address of the control plane and its root certificates; the machine trusts nothing else.
If a WorkloadGroup has the service account, the machine registers in it and becomes an
endpoint of the services that select its labels.`

const createExample = `  sudo outrigger join create --namespace shop --service-account orders
  sudo outrigger join create -n shop --group orders --address mesh.example:15012`

func newCreateCommand() *cobra.Command {
	var request join.Request
	var socket, form string
	ttl := join.DefaultTTL
	cmd := &cobra.Command{
		Use: "create --namespace NAMESPACE", Short: "Create a token for a machine", Long: createLong, Example: createExample, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := join.CheckTTL(ttl); err != nil {
				return fmt.Errorf("--ttl: %w", err)
			}
			request.Seconds = int64(ttl / time.Second)
			answer, err := create(cmd.Context(), socket, request)
			if err != nil {
				return err
			}
			out := columns.Raw(cmd.OutOrStdout()) // to copy
			switch form {
			case "token":
				_, err = fmt.Fprintln(out, answer.Token)
				return err
			case output.YAML, output.JSON:
				return output.Write(out, form, answer)
			}
			group := ""
			if answer.Group != "" {
				group = ", WorkloadGroup " + answer.Group
			}
			cmd.PrintErrf("Run this line on the machine until %s. It makes it %s%s.\n", answer.Expires.Format(time.RFC3339), answer.Identity, group)
			_, err = fmt.Fprintf(out, "echo %s | sudo outrigger join -\n", answer.Token)
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&request.Namespace, "namespace", "n", "default", "namespace of the machine")
	flags.StringVar(&request.ServiceAccount, "service-account", "", "service account of the machine (default: that of --group)")
	flags.StringVar(&request.Group, "group", "", "WorkloadGroup of the machine (default: the only one of the service account, or none)")
	flags.StringVar(&request.Address, "address", "", "host:port at which the machine reaches the control plane (default: discoveryAddress of the mesh config)")
	flags.DurationVar(&ttl, "ttl", join.DefaultTTL, "how long the token is valid, at most 24h")
	output.AddOnly(cmd, &form, "line", "token", output.YAML, output.JSON)
	flags.StringVar(&socket, "socket", adminSocket, "admin socket of the control plane (OUTRIGGER_ADMIN_SOCKET)")
	return cmd
}

// dialAdmin connects to an admin socket.
func dialAdmin(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", socket)
}

// create asks the control plane for a token.
func create(ctx context.Context, socket string, request join.Request) (answer join.Answer, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dialAdmin(ctx, socket) },
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+join.Path, bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	resp, err := client.Do(r)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return answer, fmt.Errorf("no control plane serves %s: run this where it runs, start it (systemctl start outrigger-control), or name its OUTRIGGER_ADMIN_SOCKET with --socket", socket)
	case errors.Is(err, fs.ErrPermission):
		return answer, fmt.Errorf("%s is for root and the user of the control plane: use sudo", socket)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return answer, fmt.Errorf("the control plane closed the connection to %s: use sudo", socket)
	case err != nil:
		return answer, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(resp.Body, 2*join.MaxToken))
	if err != nil {
		return answer, err
	}
	if resp.StatusCode != http.StatusOK {
		return answer, errors.New(strings.TrimSpace(string(text)))
	}
	return answer, json.Unmarshal(text, &answer)
}
