package worker_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
)

// TestPullSecretThatComesLate: a pull that failed for want of a secret does not wait for the end of its back-off once the secret is there.
func TestPullSecretThatComesLate(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.cri.AddRemoteImage("reg.example/private:1", crifake.RemoteImage{Auth: &cri.AuthConfig{Username: "me", Password: "secret"}})
		c := container("main")
		c.Image = "reg.example/private:1"
		wished := newPod("a", c)
		wished.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "pull"}}
		w.wish(wished)
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if got := w.waitingReason("uid-a"); got != "ImagePullBackOff" {
			t.Fatalf("waiting reason is %q", got)
		}
		w.mu.Lock()
		w.objects["secret/default/pull"] = &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "pull"},
			Data:       map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"reg.example":{"username":"me","password":"secret"}}}`)},
		}
		w.mu.Unlock()
		p.m.ObjectsChanged("default")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Errorf("not tried again at once: %+v", w.status("uid-a"))
		}
	})
}

// TestOneBackOffForOneImage: containers of a pod with one image pull one after the other and share the back-off.
func TestOneBackOffForOneImage(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		one, two := container("one"), container("two")
		one.Image, two.Image = "late:1", "late:1"
		w.wish(newPod("a", one, two))
		time.Sleep(65 * time.Second) // tried at 0 s, 10 s, 30 s
		synctest.Wait()
		w.mu.Lock()
		pulls := 0
		for _, e := range w.events {
			if slices.Contains([]string{`a/one Pulling Pulling image "late:1"`, `a/two Pulling Pulling image "late:1"`}, e) {
				pulls++
			}
		}
		w.mu.Unlock()
		if pulls != 3 {
			t.Errorf("pulled %d times: %q", pulls, w.events)
		}
		w.cri.AddRemoteImage("late:1", crifake.RemoteImage{})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Errorf("not started after the back-off: %+v", w.status("uid-a"))
		}
	})
}

// TestImageVolumeComesLate: the container that mounts it waits, the other one runs.
func TestImageVolumeComesLate(t *testing.T) {
	inBubble(t, crifake.Options{AnyImage: false}, func(w *world) {
		p := w.start()
		defer p.kill()
		one, two := container("one"), container("two")
		one.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		wished := newPod("a", one, two)
		wished.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data:1", PullPolicy: v1.PullIfNotPresent}}}}
		w.wish(wished)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		s := w.status("uid-a")
		if got := w.waitingReason("uid-a"); got != "ImagePullBackOff" || s.ContainerStatuses[1].State.Running == nil {
			t.Errorf("waiting reason is %q, the other container %+v", got, s.ContainerStatuses[1].State)
		}
		w.cri.AddRemoteImage("data:1", crifake.RemoteImage{})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Errorf("not started after the back-off: %+v", w.status("uid-a"))
		}
	})
}
