// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/yodel-rpc/yodel"
	yodelhttp "github.com/yodel-rpc/yodel/protocol/http"
)

// A filling is a cache that the program fills when it begins.
type filling struct{ done atomic.Bool }

func (f *filling) Filled() bool { return f.done.Load() }

// inPod is the program of docs/kubernetes.md.
func inPod(ctx context.Context, cache *filling, metrics http.Handler) error {
	// region serve
	s := yodel.NewServer(&yodel.ServerOptions{
		DrainTimeout: 15 * time.Second,
		Ready: func(context.Context) error { // called every 2 s
			if !cache.Filled() {
				return errors.New("the cache is being filled")
			}
			return nil
		},
	})
	admin := &http.Server{Addr: ":9090", Handler: yodelhttp.Admin(s, metrics), ReadHeaderTimeout: time.Second}
	go admin.ListenAndServe() // it answers during the shutdown too
	err := s.ListenAndServe(ctx, ":8972")
	// endregion serve
	return errors.Join(err, admin.Close())
}

var _ = inPod // it is in the document, and needs ports of its own

// An object has the fields of Kubernetes that the manifest of docs/kubernetes.md uses.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name, Namespace string }
	Rules      []struct {
		APIGroups []string `yaml:"apiGroups"`
		Resources []string
		Verbs     []string
	}
	RoleRef struct {
		APIGroup   string `yaml:"apiGroup"`
		Kind, Name string
	} `yaml:"roleRef"`
	Subjects []struct{ Kind, Name, Namespace string }
	Spec     struct {
		ClusterIP string `yaml:"clusterIP"`
		Selector  any
		Ports     []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Replicas int
		Strategy struct {
			RollingUpdate struct {
				MaxSurge       int `yaml:"maxSurge"`
				MaxUnavailable int `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
	}
}

type podSpec struct {
	ServiceAccountName            string `yaml:"serviceAccountName"`
	TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
	Containers                    []struct {
		Name, Image string
		Ports       []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		Lifecycle      struct {
			PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
		}
	}
}

type probe struct {
	HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
	PeriodSeconds    int                         `yaml:"periodSeconds"`
	FailureThreshold int                         `yaml:"failureThreshold"`
}

// manifest returns the objects in the manifest of docs/kubernetes.md by their kinds.
func manifest(t *testing.T) map[string]*object {
	t.Helper()
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```yaml\n")
	text, _, ended := strings.Cut(rest, "```\n")
	if !found || !ended {
		t.Fatal("the page has no manifest")
	}
	all := make(map[string]*object)
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.KnownFields(true)
	for {
		o := new(object)
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[o.Kind] = o
	}
}

// The parts of the manifest fit together, and fit the server: its probes, its ports, and the time
// that its shutdown takes.
func TestTheManifestForKubernetes(t *testing.T) {
	all := manifest(t)
	for _, kind := range []string{"ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"} {
		if o := all[kind]; o == nil || o.APIVersion == "" || o.Metadata.Name == "" || o.Metadata.Namespace != "shop" {
			t.Fatalf("%s: got %+v", kind, o)
		}
	}
	account, role, binding := all["ServiceAccount"].Metadata.Name, all["Role"], all["RoleBinding"]
	pod := all["Deployment"].Spec.Template.Spec
	if binding.RoleRef.Name != role.Metadata.Name || binding.Subjects[0].Name != account || pod.ServiceAccountName != account {
		t.Errorf("the account %s does not get the role: %+v, %+v", account, binding, pod)
	}
	var verbs []string
	for _, rule := range role.Rules {
		if !slices.Equal(rule.APIGroups, []string{"discovery.k8s.io"}) || !slices.Equal(rule.Resources, []string{"endpointslices"}) {
			t.Errorf("a rule is for %v in %v", rule.Resources, rule.APIGroups)
		}
		verbs = append(verbs, rule.Verbs...)
	}
	slices.Sort(verbs)
	if got := fmt.Sprint(verbs); got != "[create delete get list patch watch]" {
		t.Errorf("the verbs are %s", got)
	}
	labels := all["Deployment"].Spec.Template.Metadata.Labels
	if got, want := fmt.Sprint(all["Service"].Spec.Selector), fmt.Sprint(labels); got != want {
		t.Errorf("the Service selects %s, the pods have %s", got, want)
	}
	c := pod.Containers[0]
	const drain = 15 // as in the program
	if pod.TerminationGracePeriodSeconds <= c.Lifecycle.PreStop.Sleep.Seconds+drain {
		t.Errorf("the grace period is %d s, the sleep %d s", pod.TerminationGracePeriodSeconds, c.Lifecycle.PreStop.Sleep.Seconds)
	}
	ports := make(map[string]int)
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if p := all["Service"].Spec.Ports[0]; ports[p.TargetPort] != p.Port || ports["admin"] != 9090 {
		t.Errorf("the ports are %v, that of the Service is %+v", ports, p)
	}
	admin := yodelhttp.Admin(yodel.NewServer(nil), nil)
	for _, p := range []probe{c.ReadinessProbe, c.LivenessProbe} {
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, p.HTTPGet.Path, nil))
		if w.Code != http.StatusOK || p.HTTPGet.Port != "admin" || p.PeriodSeconds == 0 || p.FailureThreshold == 0 {
			t.Errorf("the probe %+v gets status %d", p, w.Code)
		}
	}
}
