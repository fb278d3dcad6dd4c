// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package status serves the agent's status port, 15020: readiness, the merged
// metrics of agent, Envoy and application, and the application's own probes,
// which the mesh has moved here because Envoy would refuse the kubelet.
//
// The agent's wiring builds it from functions and addresses; it never reaches
// into the agent, never decides to end anything and keeps no metric of others.
// Goroutines: Run serves, with one goroutine for each connection, and returns
// when it has stopped. One for each source fetches its metrics while a scrape
// lasts.
//
// Who may do what:
//
//	path                                        method  who       answer
//	/healthz/ready                              any     anybody   200 or 503, a sentence
//	/stats/prometheus, /metrics                 any     anybody   200, in the format that was asked for;
//	                                                              503 while too many others are at it;
//	                                                              MetricsLocalOnly: loopback only
//	/app-health/<container>/{livez,readyz,startupz}
//	                                            GET     anybody   what the application answered
//	/app-lifecycle/<container>/{poststartz,prestopz}
//	                                            GET     HookSources  what the application answered
//	/quitquitquit                               POST    loopback  200, then the agent ends
//	/drain                                      POST    loopback  200 when Envoy has drained; Envoy goes on
//	/debug/pprof/...                            any     loopback  with profiling only
//	Loopback.Debug                              GET     loopback  what the agent shows of itself
//	anything else                               any     anybody   404
//
// "Loopback" is the address of the TCP peer, and not one of those from which
// Envoy hands on requests of others (127.0.0.6 and ::6).
package status
