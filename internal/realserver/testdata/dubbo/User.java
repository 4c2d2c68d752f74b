// SPDX-License-Identifier: Apache-2.0

package com.acme;

import java.io.Serializable;
import java.util.List;
import java.util.Map;

public class User implements Serializable {
    private static final long serialVersionUID = 1;
    private long id;
    private String name;
    private List<String> labels;
    private User best;
    private Color color;
    private Map<String, Double> scores;

    public User() {}

    public User(long id, String name) {
        this.id = id;
        this.name = name;
    }

    public long getId() { return id; }
    public void setId(long id) { this.id = id; }
    public String getName() { return name; }
    public void setName(String name) { this.name = name; }
    public List<String> getLabels() { return labels; }
    public void setLabels(List<String> labels) { this.labels = labels; }
    public User getBest() { return best; }
    public void setBest(User best) { this.best = best; }
    public Color getColor() { return color; }
    public void setColor(Color color) { this.color = color; }
    public Map<String, Double> getScores() { return scores; }
    public void setScores(Map<String, Double> scores) { this.scores = scores; }
}
